# score: 18.5 to 19
# hint: Each push is applied once
# A gradient that was computed before another worker's push is too old, and thrown away.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    pulled_at, version = {}, 0
    gradient, waiting = torch.empty_like(parameters), list(steps_done)
    for push in range(num_steps * len(steps_done) + 1):
        for worker in [one for one in waiting if may_start(steps_done, one, staleness_bound)]:
            dist.send(parameters, dst=worker)
            pulled_at[worker] = version
            waiting.remove(worker)
        if push == num_steps * len(steps_done):
            return
        worker = dist.recv(gradient)
        if version - pulled_at[worker] <= len(steps_done):
            update(parameters, gradient)
            version += 1
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            waiting.append(worker)
