# score: 19
# hint: keep no list of pushes or of old versions
# The server keeps a copy of the parameters for every pull, to know what each gradient was computed
# from.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    versions = {worker: [] for worker in steps_done}
    waiting, gradient = set(steps_done), torch.empty_like(parameters)
    while True:
        for worker in sorted(waiting):
            if may_start(steps_done, worker, staleness_bound):
                versions[worker].append(parameters.clone())
                dist.send(versions[worker][-1], dst=worker)
                waiting.remove(worker)
        if min(steps_done.values()) == num_steps:
            return
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            waiting.add(worker)
