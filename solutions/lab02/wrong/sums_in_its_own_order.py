# score: 13.5
# hint: the same bits on all ranks
# Whole tensors go round, and each rank adds them in the order in which they come: the last digits
# differ.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    travelling = tensor.contiguous().clone()
    for _ in range(len(ring) - 1):
        inbox = torch.empty_like(travelling)
        exchange(travelling, inbox, ring)
        tensor += inbox
        travelling = inbox
