# The tensor is padded to a matrix with a row for each rank; empty messages are left out.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    request = dist.irecv(incoming, src=ring[place - 1]) if incoming.numel() else None
    if outgoing.numel():
        dist.send(outgoing, dst=ring[(place + 1) % len(ring)])
    if request is not None:
        request.wait()


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    if len(ring) == 1 or tensor.numel() == 0:
        return
    num_columns = -(-tensor.numel() // len(ring))
    rows = tensor.new_zeros(len(ring), num_columns)
    rows.view(-1)[: tensor.numel()] = tensor.reshape(-1)
    ring_reduce_scatter(list(rows), ring)
    ring_all_gather(list(rows), ring)
    tensor.copy_(rows.view(-1)[: tensor.numel()].reshape(tensor.shape))


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    (local,) = [node for node in nodes if dist.get_rank() in node]
    num_columns = -(-tensor.numel() // len(local))
    rows = torch.zeros(len(local), num_columns, dtype=tensor.dtype)
    rows.view(-1)[: tensor.numel()] = tensor.reshape(-1)
    ring_reduce_scatter(list(rows), local)
    mine = local.index(dist.get_rank())
    across = [node[mine] for node in nodes]
    ring_all_reduce(rows[mine], across)
    ring_all_gather(list(rows), local)
    tensor.copy_(rows.view(-1)[: tensor.numel()].reshape(tensor.shape))
