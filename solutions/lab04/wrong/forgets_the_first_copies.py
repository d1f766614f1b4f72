# score: 10.5
# hint: Send every worker its first copy
# Both servers begin with a receive, while the workers wait for their first copy.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient = torch.empty_like(parameters)
    while min(steps_done.values()) < num_steps:
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            dist.send(parameters, dst=worker)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    run_unbounded_server(parameters, update, num_steps)
