# One loop of 2(N - 1) steps with batch_isend_irecv and indices modulo N; no function builds on
# another.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    operations = [
        dist.P2POp(dist.irecv, incoming, ring[(place - 1) % len(ring)]),
        dist.P2POp(dist.isend, outgoing, ring[(place + 1) % len(ring)]),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


# %% ring_all_reduce
import itertools


def ring_all_reduce(tensor, ring):
    size, place = len(ring), ring.index(dist.get_rank())
    flat = tensor.reshape(-1).clone()
    bounds = [flat.numel() * c // size for c in range(size + 1)]
    chunks = [flat[low:high] for low, high in itertools.pairwise(bounds)]
    for step in range(2 * (size - 1)):
        out, into = (place - step) % size, (place - step - 1) % size
        inbox = torch.empty_like(chunks[into])
        exchange(chunks[out], inbox, ring)
        if step < size - 1:
            chunks[into].add_(inbox)
        else:
            chunks[into].copy_(inbox)
    tensor.copy_(flat.reshape(tensor.shape))
