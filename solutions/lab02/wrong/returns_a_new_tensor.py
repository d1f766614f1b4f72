# score: 17
# hint: into the tensor itself
# The sum is returned, and the tensor that was given stays as it was.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    flat = tensor.clone().reshape(-1)
    chunks = list(flat.tensor_split(len(ring)))
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    return flat.reshape(tensor.shape)
