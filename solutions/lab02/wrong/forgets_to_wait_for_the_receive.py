# score: 18.75
# hint: wait for the handle of irecv
# hint: An audit of this run found "not waited for"
# The receive is started and never waited for: incoming is read before anything has come.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    dist.irecv(incoming, ring[place - 1])
    dist.isend(outgoing, ring[(place + 1) % len(ring)]).wait()
