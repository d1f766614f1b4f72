# score: 19.5
# hint: keep no list of inboxes
# Every step has an inbox as long as the tensor, all made in advance: the wire is right, memory
# grows with the ranks.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    size, place = len(ring), ring.index(dist.get_rank())
    flat = tensor.reshape(-1).clone()
    inboxes = [torch.zeros_like(flat).tensor_split(size) for _ in range(2 * (size - 1))]
    chunks = flat.tensor_split(size)
    for step, inbox in enumerate(inboxes):
        out, into = (place - step) % size, (place - step - 1) % size
        exchange(chunks[out], inbox[into], ring)
        if step < size - 1:
            chunks[into].add_(inbox[into])
        else:
            chunks[into].copy_(inbox[into])
    tensor.copy_(flat.view(tensor.shape))
