# score: 18.5
# hint: Each push is applied once, unchanged
# The server divides every gradient by the number of workers, as if it were an all-reduce.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient, waiting = torch.empty_like(parameters), list(steps_done)
    for push in range(num_steps * len(steps_done) + 1):
        for worker in [one for one in waiting if may_start(steps_done, one, staleness_bound)]:
            dist.send(parameters, dst=worker)
            waiting.remove(worker)
        if push == num_steps * len(steps_done):
            return
        worker = dist.recv(gradient)
        update(parameters, gradient / len(steps_done))
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            waiting.append(worker)
