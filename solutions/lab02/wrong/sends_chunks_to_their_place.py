# score: 15
# hint: the one after them in the ring
# Every chunk goes straight to the rank that sums it, and back from there to each: few bytes, but no
# ring.


# %% ring_reduce_scatter
def ring_reduce_scatter(chunks, ring):
    place, others = ring.index(dist.get_rank()), [rank for rank in ring if rank != dist.get_rank()]
    works = [dist.isend(chunks[ring.index(rank)], rank) for rank in others]
    inboxes = [torch.empty_like(chunks[place]) for _ in others]
    works += [dist.irecv(inbox, rank) for inbox, rank in zip(inboxes, others, strict=True)]
    for work in works:
        work.wait()
    for inbox in inboxes:
        chunks[place] += inbox


# %% ring_all_gather
def ring_all_gather(chunks, ring):
    place, others = ring.index(dist.get_rank()), [rank for rank in ring if rank != dist.get_rank()]
    works = [dist.isend(chunks[place], rank) for rank in others]
    works += [dist.irecv(chunks[ring.index(rank)], rank) for rank in others]
    for work in works:
        work.wait()
