# score: 17.5
# hint: Sum inside each node first
# After the sum inside the node, every rank takes the whole of it across: G times the bytes that are
# needed.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    node = next(node for node in nodes if dist.get_rank() in node)
    ring_all_reduce(tensor, node)
    ring_all_reduce(tensor, [other[node.index(dist.get_rank())] for other in nodes])
