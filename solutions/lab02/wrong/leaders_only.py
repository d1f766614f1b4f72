# score: 18.25
# hint: one rank sends them for all
# All-reduce inside each node, a ring of the nodes' first ranks, and a broadcast: one NIC carries
# what all could.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    node = next(node for node in nodes if dist.get_rank() in node)
    ring_all_reduce(tensor, node)
    if dist.get_rank() == node[0]:
        ring_all_reduce(tensor, [other[0] for other in nodes])
        for work in [dist.isend(tensor, rank) for rank in node[1:]]:
            work.wait()
    else:
        dist.recv(tensor, node[0])
