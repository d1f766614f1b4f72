# score: 19.5
# hint: Receive into the tensor that you were given
# A worker receives into a tensor of its own; the caller's stays as it was.


# %% run_worker
def run_worker(parameters, gradient_of, num_steps):
    for _ in range(num_steps):
        pulled = torch.empty_like(parameters)
        dist.recv(pulled, src=0)
        dist.send(gradient_of(pulled), dst=0)
