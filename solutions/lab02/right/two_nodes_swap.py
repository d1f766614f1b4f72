# Between two nodes, ranks swap their parts whole: as many bytes in half the steps; otherwise a
# ring.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    rank = dist.get_rank()
    [node] = [ranks for ranks in nodes if rank in ranks]
    twins = [ranks[node.index(rank)] for ranks in nodes]
    flat = tensor.flatten().clone()
    pieces = list(flat.tensor_split(len(node)))
    ring_reduce_scatter(pieces, node)
    part = pieces[node.index(rank)]
    if len(twins) == 2:
        theirs = torch.empty_like(part)
        exchange(part, theirs, twins)
        part += theirs
    else:
        ring_all_reduce(part, twins)
    ring_all_gather(pieces, node)
    tensor.copy_(flat.reshape(tensor.shape))
