# score: 19
# hint: Return after the last push of all
# The server waits for one more push than there are.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient, waiting = torch.empty_like(parameters), list(steps_done)
    while True:
        for worker in [one for one in waiting if may_start(steps_done, one, staleness_bound)]:
            dist.send(parameters, dst=worker)
            waiting.remove(worker)
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            waiting.append(worker)
        if min(steps_done.values()) > num_steps:
            return
