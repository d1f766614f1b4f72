# score: 0
# hint: wait for both
# The receive is started and never waited for: incoming is read before anything has come.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    dist.irecv(incoming, ring[place - 1])
    dist.isend(outgoing, ring[(place + 1) % len(ring)]).wait()
