# score: 10.5
# hint: is not allowed here
# The server broadcasts the parameters and reduces the gradients: it is an all-reduce by another
# name.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    for _ in range(num_steps):
        dist.broadcast(parameters, src=0)
        total = torch.zeros_like(parameters)
        dist.reduce(total, dst=0)
        update(parameters, total)
