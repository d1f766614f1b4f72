# score: 18
# hint: copy the result back
# Only the part of the tensor that divides by the number of ranks is summed.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    flat = tensor.contiguous().view(-1)
    length = flat.numel() // len(ring)
    chunks = [flat[place * length : (place + 1) * length] for place in range(len(ring))]
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    tensor.copy_(flat.view_as(tensor))
