# score: 13.5
# hint: Whole tensors need not travel
# Everybody's tensor goes once round the ring and is added on the way: the right sum, N/2 times the
# bytes.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    travelling, total = tensor.contiguous(), {ring.index(dist.get_rank()): tensor.clone()}
    for step in range(1, len(ring)):
        inbox = torch.empty_like(travelling)
        exchange(travelling, inbox, ring)
        total[(ring.index(dist.get_rank()) - step) % len(ring)] = inbox
        travelling = inbox
    tensor.copy_(sum(total[place] for place in range(len(ring))))
