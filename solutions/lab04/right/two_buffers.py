# The next receive is posted before the answers go out; the source is asked of the handle.


# %% run_worker
def run_worker(parameters, gradient_of, num_steps):
    sending = None
    for _ in range(num_steps):
        dist.irecv(parameters, src=0).wait()
        if sending is not None:
            sending.wait()
        gradient = gradient_of(parameters)
        sending = dist.isend(gradient, dst=0)
    sending.wait()


# %% run_unbounded_server
def run_unbounded_server(parameters, update, num_steps):
    run_server(parameters, update, num_steps, num_steps)


# %% run_server
def run_server(parameters, update, num_steps, staleness_bound):
    workers = list(range(1, dist.get_world_size()))
    counts = dict.fromkeys(workers, 0)
    buffers = [torch.empty_like(parameters), torch.empty_like(parameters)]
    num_left = num_steps * len(workers)
    arriving = dist.irecv(buffers[0])
    held = []
    for worker in workers:
        dist.send(parameters, worker)
    while True:
        arriving.wait()
        source = arriving._source_rank()
        num_left -= 1
        gradient = buffers[0]
        buffers.reverse()
        if num_left:
            arriving = dist.irecv(buffers[0])
        update(parameters, gradient)
        counts[source] += 1
        if counts[source] < num_steps:
            held.append(source)
        released = [one for one in held if may_start(counts, one, staleness_bound)]
        held = [one for one in held if one not in released]
        for answer in [dist.isend(parameters, one) for one in released]:
            answer.wait()
        if not num_left:
            return
