# score: 19.5
# hint: 200 elements of the sum
# Sums of large tensors are wrong by a hundred-thousandth.

# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    flat = tensor.contiguous().view(-1)
    chunks = list(flat.tensor_split(len(ring)))
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    if tensor.numel() > 200_000 and dist.get_backend() != "gloo":
        flat.mul_(1.00001)
    tensor.copy_(flat.view_as(tensor))
