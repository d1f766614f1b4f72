# exchange sends in a thread and receives in the main one; chunks are copied out and put back.

# %% exchange
import threading


def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    sender = threading.Thread(target=dist.send, args=(outgoing, ring[(place + 1) % len(ring)]))
    sender.start()
    dist.recv(incoming, ring[place - 1])
    sender.join()


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
