# score: 19.5
# hint: copy the result back
# reshape makes a copy of a view with gaps, which is summed over the nodes and then forgotten.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    node = next(node for node in nodes if dist.get_rank() in node)
    place = node.index(dist.get_rank())
    chunks = list(tensor.reshape(-1).tensor_split(len(node)))
    ring_reduce_scatter(chunks, node)
    ring_all_reduce(chunks[place], [other[place] for other in nodes])
    ring_all_gather(chunks, node)
