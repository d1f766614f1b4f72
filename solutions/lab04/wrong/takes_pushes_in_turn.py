# score: 17.5
# hint: from any worker
# The server receives from worker 1, then 2, then 3: everybody waits for the slowest.


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
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
