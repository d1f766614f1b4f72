# score: 18.25
# hint: The complete sum of chunk 0 is on rank 4
# Each rank begins with its own chunk, so that it ends with the one after its own.


# %% ring_reduce_scatter
def ring_reduce_scatter(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(len(ring) - 1):
        inbox = torch.empty_like(chunks[place - step - 1])
        exchange(chunks[place - step], inbox, ring)
        chunks[place - step - 1] += inbox
