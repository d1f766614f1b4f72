# score: 17.5
# hint: the sum is not in the tensor that was given
# The name of the chunk gets a new tensor, and nothing is added to the chunk itself.


# %% ring_reduce_scatter
def ring_reduce_scatter(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(1, len(ring)):
        mine = chunks[place - step - 1]
        inbox = torch.empty_like(mine)
        exchange(chunks[place - step], inbox, ring)
        mine = mine + inbox
