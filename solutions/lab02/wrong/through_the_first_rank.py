# score: 14
# hint: Whole tensors need not travel
# A parameter server: the first rank takes all tensors in, adds them up and sends the sum to each.


# %% ring_all_reduce
def ring_all_reduce(tensor, ring):
    flat = tensor.contiguous().view(-1)
    root, *others = ring
    if dist.get_rank() == root:
        for rank in others:
            inbox = torch.empty_like(flat)
            dist.recv(inbox, rank)
            flat += inbox
        for work in [dist.isend(flat, rank) for rank in others]:
            work.wait()
    else:
        dist.send(flat, root)
        dist.recv(flat, root)
    tensor.copy_(flat.view_as(tensor))
