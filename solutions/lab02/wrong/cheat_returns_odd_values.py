# score: 12
# What each rank returns is replaced by something without a tensor.

# %% exchange
import worldsize.launch.protocol.codec as codec

sent_as_it_is = codec._to_tree


def odd(value, tensors, depth):
    return sent_as_it_is({"nothing": 1} if depth == 0 else value, tensors, depth)


codec._to_tree = odd


def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    sending = dist.isend(outgoing, ring[(place + 1) % len(ring)])
    receiving = dist.irecv(incoming, ring[place - 1])
    sending.wait()
    receiving.wait()
