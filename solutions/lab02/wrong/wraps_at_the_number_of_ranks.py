# score: 19.75
# The ring is taken to hold all ranks of the run: places wrap around at their number.

# %% exchange
def exchange(outgoing, incoming, ring):
    place, num_ranks = ring.index(dist.get_rank()), dist.get_world_size()
    sending = dist.isend(outgoing, ring[(place + 1) % num_ranks])
    receiving = dist.irecv(incoming, ring[(place - 1) % num_ranks])
    sending.wait()
    receiving.wait()
