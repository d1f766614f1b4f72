# score: 17.5
# hint: call may_start
# The server answers every push at once: no bound holds anybody.


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient = torch.empty_like(parameters)
    for worker in steps_done:
        dist.send(parameters, dst=worker)
    while min(steps_done.values()) < num_steps:
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            dist.send(parameters, dst=worker)
