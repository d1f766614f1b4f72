# score: 19.5
# hint: Numbers travel in the tensor's own dtype
# Half-precision tensors go through float32 between nodes, in twice the bytes; float64 stays.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    node = next(node for node in nodes if dist.get_rank() in node)
    place = node.index(dist.get_rank())
    flat = tensor.to(torch.promote_types(tensor.dtype, torch.float32)).contiguous().view(-1)
    chunks = list(flat.tensor_split(len(node)))
    ring_reduce_scatter(chunks, node)
    ring_all_reduce(chunks[place], [other[place] for other in nodes])
    ring_all_gather(chunks, node)
    tensor.copy_(flat.view_as(tensor))
