# Between nodes, all ranks send each other's parts directly and at the same time, not in a ring; and
# ring_all_reduce copies its chunks out of the tensor one by one.


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    rank = dist.get_rank()
    (number,) = [one for one, node in enumerate(nodes) if rank in node]
    node = nodes[number]
    place = node.index(rank)
    peers = [other[place] for other in nodes]
    flat = tensor.contiguous().view(-1)
    chunks = list(flat.tensor_split(len(node)))
    ring_reduce_scatter(chunks, node)
    parts = list(chunks[place].tensor_split(len(nodes)))
    others = [one for one in range(len(nodes)) if one != number]
    inboxes = {one: torch.empty_like(parts[number]) for one in others}
    works = [dist.irecv(inboxes[one], peers[one]) for one in others]
    works += [dist.isend(parts[one], peers[one]) for one in others]
    for work in works:
        work.wait()
    for one in others:
        parts[number] += inboxes[one]
    works = [dist.irecv(parts[one], peers[one]) for one in others]
    works += [dist.isend(parts[number], peers[one]) for one in others]
    for work in works:
        work.wait()
    ring_all_gather(chunks, node)
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view_as(tensor))


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    size, total = len(ring), tensor.numel()
    cuts = [total * place // size for place in range(size + 1)]
    flat = tensor.reshape(-1)
    chunks = [flat[cuts[place] : cuts[place + 1]].clone() for place in range(size)]
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    if total:
        tensor.copy_(torch.cat(chunks).reshape(tensor.shape))
