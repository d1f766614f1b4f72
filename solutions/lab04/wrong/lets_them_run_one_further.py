# score: 18
# hint: ahead of the slowest
# Steps count when they are handed out: everybody runs one step further than the bound.


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    given = dict.fromkeys(range(1, dist.get_world_size()), 0)
    done = dict(given)
    waiting, gradient = set(given), torch.empty_like(parameters)
    while True:
        for worker in sorted(waiting):
            if given[worker] - min(given.values()) <= staleness_bound and may_start(
                done, worker, staleness_bound + 1
            ):
                given[worker] += 1
                dist.send(parameters, dst=worker)
                waiting.remove(worker)
        if min(done.values()) == num_steps:
            return
        worker = dist.recv(gradient)
        update(parameters, gradient)
        done[worker] += 1
        if done[worker] < num_steps:
            waiting.add(worker)
