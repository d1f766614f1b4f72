# score: 19
# hint: once to be summed and once to be handed out
# All sum the whole inside the node, then each its own part across, then an all-gather: right, and
# too much inside.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    node = next(node for node in nodes if dist.get_rank() in node)
    place = node.index(dist.get_rank())
    flat = tensor.contiguous().view(-1)
    ring_all_reduce(flat, node)
    chunks = list(flat.tensor_split(len(node)))
    ring_all_reduce(chunks[place], [other[place] for other in nodes])
    ring_all_gather(chunks, node)
    tensor.copy_(flat.view_as(tensor))
