# score: 18.75
# hint: nothing is added
# The second half of the ring adds what it receives, as the first half does.


# %% ring_all_gather
def ring_all_gather(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(len(ring) - 1):
        inbox = torch.empty_like(chunks[place - step - 1])
        exchange(chunks[place - step], inbox, ring)
        chunks[place - step - 1] += inbox
