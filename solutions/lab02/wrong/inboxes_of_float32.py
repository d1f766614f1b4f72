# score: 19.25
# What is received is float32, whatever the dtype of the chunks.

# %% ring_reduce_scatter
def ring_reduce_scatter(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(1, len(ring)):
        mine = chunks[place - step - 1]
        inbox = torch.empty(len(mine))
        exchange(chunks[place - step], inbox, ring)
        mine += inbox


# %% ring_all_gather
def ring_all_gather(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(1, len(ring)):
        inbox = torch.empty(len(chunks[place - step]))
        exchange(chunks[place - step + 1], inbox, ring)
        chunks[place - step].copy_(inbox)
