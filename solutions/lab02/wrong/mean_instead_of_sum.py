# score: 17
# hint: This looks like the mean
# The sum is divided by the number of ranks, as in lab 1.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    flat = tensor.contiguous().view(-1)
    chunks = list(flat.tensor_split(len(ring)))
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    tensor.copy_(flat.view_as(tensor) / len(ring))
