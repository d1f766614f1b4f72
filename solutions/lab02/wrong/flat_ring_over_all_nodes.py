# score: 16.5
# hint: Sum inside each node first
# One ring through all nodes: the right sum, and nearly twice the bytes over the slow links.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    ring_all_reduce(tensor, [rank for node in nodes for rank in node])
