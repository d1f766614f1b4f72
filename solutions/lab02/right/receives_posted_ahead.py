# Every receive is posted before the first send, and sends are waited for at the end; nothing calls
# exchange.


# %% ring_reduce_scatter
def ring_reduce_scatter(chunks, ring):
    size, place = len(ring), ring.index(dist.get_rank())
    following, previous = ring[(place + 1) % size], ring[(place - 1) % size]
    order = [(place - 1 - step) % size for step in range(size)]  # ends with our own
    inboxes = [torch.zeros_like(chunks[c]) for c in order[1:]]
    receives = [dist.irecv(inbox, src=previous) for inbox in inboxes]
    sends = []
    for step in range(size - 1):
        sends.append(dist.isend(chunks[order[step]], dst=following))
        receives[step].wait()
        chunks[order[step + 1]] += inboxes[step]
    for work in sends:
        work.wait()


# %% ring_all_gather
def ring_all_gather(chunks, ring):
    size, place = len(ring), ring.index(dist.get_rank())
    following, previous = ring[(place + 1) % size], ring[(place - 1) % size]
    order = [(place - step) % size for step in range(size)]
    receives = [dist.irecv(chunks[c], src=previous) for c in order[1:]]
    sends = [dist.isend(chunks[place], dst=following)] if size > 1 else []
    for step, receive in enumerate(receives, start=1):
        receive.wait()
        if step < size - 1:
            sends.append(dist.isend(chunks[order[step]], dst=following))
    for work in sends:
        work.wait()
