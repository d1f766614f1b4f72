# score: 19
# What is sent is never waited for: it may still be under way when the caller changes it.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    dist.isend(outgoing, ring[(place + 1) % len(ring)])
    dist.irecv(incoming, ring[place - 1]).wait()
