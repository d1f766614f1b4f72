# score: 17
# hint: wait
# Only the worker that has just pushed may be answered: one that was held is never asked again.


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient = torch.empty_like(parameters)
    for worker in steps_done:
        dist.send(parameters, dst=worker)
    for _ in range(num_steps * len(steps_done)):
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps and may_start(steps_done, worker, staleness_bound):
            dist.send(parameters, dst=worker)
