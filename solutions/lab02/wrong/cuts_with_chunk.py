# score: 19.5
# hint: list index out of range
# tensor.chunk gives fewer pieces than there are ranks where the size does not fit.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    flat = tensor.contiguous().view(-1)
    chunks = list(flat.chunk(len(ring)))
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    tensor.copy_(flat.view_as(tensor))
