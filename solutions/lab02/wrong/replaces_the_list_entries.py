# score: 18.75
# hint: the list keeps its tensors
# Received chunks are put into the list and not into the tensors that it held.


# %% ring_all_gather
def ring_all_gather(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(len(ring) - 1):
        inbox = torch.empty_like(chunks[place - step - 1])
        exchange(chunks[place - step], inbox, ring)
        chunks[place - step - 1] = inbox
