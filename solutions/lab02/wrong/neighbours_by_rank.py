# score: 19.75
# hint: places come from ring.index(rank)
# The next rank is rank + 1 of the world, whatever the list says.


# %% exchange
def exchange(outgoing, incoming, ring):
    rank, size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(outgoing, (rank + 1) % size)
    dist.irecv(incoming, (rank - 1) % size).wait()
    sending.wait()
