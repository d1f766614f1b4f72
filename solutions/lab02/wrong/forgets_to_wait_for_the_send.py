# score: 19.5
# hint: Keep the handle of isend
# hint: An audit of this run found "not waited for"
# What it sends may still be under way when it returns.

# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    dist.isend(outgoing, ring[(place + 1) % len(ring)])
    dist.irecv(incoming, ring[place - 1]).wait()
