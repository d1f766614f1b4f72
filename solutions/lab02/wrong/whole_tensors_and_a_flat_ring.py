# score: 10
# hint: Whole tensors need not travel
# Right sums everywhere, and neither of the two all-reduces spares the links: the lab's objective is
# missed.

# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    travelling, place = tensor.contiguous(), ring.index(dist.get_rank())
    parts = {place: tensor.clone()}
    for step in range(1, len(ring)):
        inbox = torch.empty_like(travelling)
        exchange(travelling, inbox, ring)
        parts[(place - step) % len(ring)] = travelling = inbox
    tensor.copy_(sum(parts[one] for one in range(len(ring))))


# %% hierarchical_all_reduce
def hierarchical_all_reduce(tensor, nodes):
    ring_all_reduce(tensor, [rank for node in nodes for rank in node])
