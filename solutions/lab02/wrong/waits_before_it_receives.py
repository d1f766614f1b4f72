# score: 18.5
# hint: at the same time, whichever neighbour is ready first
# isend, and its wait before the irecv is posted: no better than a blocking send.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    dist.isend(outgoing, ring[(place + 1) % len(ring)]).wait()
    dist.irecv(incoming, ring[place - 1]).wait()
