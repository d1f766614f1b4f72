# score: 19.5
# hint: copy the result back
# reshape makes a copy of a view with gaps: the copy is summed, and the tensor stays as it was.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    chunks = [chunk.contiguous() for chunk in tensor.reshape(-1).tensor_split(len(ring))]
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
