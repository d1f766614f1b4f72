# The server keeps no set of those who wait, but asks for each worker whether its next pull is due.


# %% may_start
def may_start(steps_done, worker, staleness_bound):
    return all(steps_done[worker] <= other + staleness_bound for other in steps_done.values())


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    num_workers = dist.get_world_size() - 1
    pushes, pulls = [0] * (num_workers + 1), [0] * (num_workers + 1)

    def answer():
        done = {worker: pushes[worker] for worker in range(1, num_workers + 1)}
        for worker in done:
            is_due = pulls[worker] == pushes[worker] and pulls[worker] < num_steps
            if is_due and may_start(done, worker, staleness_bound):
                dist.send(parameters, worker)
                pulls[worker] += 1

    answer()
    while sum(pushes) < num_steps * num_workers:
        gradient = torch.zeros_like(parameters)
        pushes[dist.recv(gradient)] += 1
        update(parameters, gradient)
        answer()
