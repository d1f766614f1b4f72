# score: 19.5
# hint: every isend of the server to be waited for
# The server's sends are started and never waited for: over real sockets the ranks hang.


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    steps_done = dict.fromkeys(range(1, dist.get_world_size()), 0)
    gradient = torch.empty_like(parameters)
    for worker in steps_done:
        dist.isend(parameters, dst=worker)
    for _ in range(num_steps * len(steps_done)):
        worker = dist.recv(gradient)
        update(parameters, gradient)
        steps_done[worker] += 1
        if steps_done[worker] < num_steps:
            dist.isend(parameters, dst=worker)
