# score: 19.5
# hint: keep no list of pushes or of old versions
# Only the server with a bound keeps a copy of every push and of every version.


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
        versions[worker].append(gradient.clone())
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            waiting.add(worker)
