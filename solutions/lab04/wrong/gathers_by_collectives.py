# score: 11
# hint: is not allowed here
# The server broadcasts the parameters and reduces the gradients: it is an all-reduce by another
# name.


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    for _ in range(num_steps):
        dist.broadcast(parameters, src=0)
        total = torch.zeros_like(parameters)
        dist.reduce(total, dst=0)
        update(parameters, total)
