# score: 19
# hint: nobody is answered after its last push
# Every push is answered, also the last one, when the worker has gone.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient, waiting = torch.empty_like(parameters), list(steps_done)
    for _ in range(num_steps * len(steps_done)):
        for worker in [one for one in waiting if may_start(steps_done, one, staleness_bound)]:
            dist.send(parameters, dst=worker)
            waiting.remove(worker)
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        waiting.append(worker)
    for worker in waiting:
        dist.send(parameters, dst=worker)
