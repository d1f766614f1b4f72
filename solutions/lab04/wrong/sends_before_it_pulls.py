# score: 18.5
# hint: wait for each other
# A worker computes and pushes first, and pulls afterwards.


# %% run_worker
def run_worker(parameters, gradient_of, num_steps):
    for _ in range(num_steps):
        dist.send(gradient_of(parameters), dst=0)
        dist.recv(parameters, src=0)
