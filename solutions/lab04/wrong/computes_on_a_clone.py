# score: 19.5
# hint: no copy of it
# The worker computes its gradient at a copy of the parameters.


# %% run_worker
def run_worker(parameters, gradient_of, num_steps):
    for _ in range(num_steps):
        dist.recv(parameters, src=0)
        dist.send(gradient_of(parameters.clone()), dst=0)
