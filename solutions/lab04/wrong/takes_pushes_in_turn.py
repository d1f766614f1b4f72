# score: 12.5
# hint: from any worker
# The server receives from worker 1, then 2, then 3: everybody waits for the slowest.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    workers = range(1, dist.get_world_size())
    gradient = torch.empty_like(parameters)
    for worker in workers:
        dist.send(parameters, dst=worker)
    for step in range(1, num_steps + 1):
        for worker in workers:
            dist.recv(gradient, src=worker)
            update(parameters, gradient)
        for worker in workers:
            if step < num_steps:
                dist.send(parameters, dst=worker)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    run_unbounded_server(parameters, update, num_steps)
