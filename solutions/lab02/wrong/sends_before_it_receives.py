# score: 18.5
# hint: at the same time, whichever neighbour is ready first
# Blocking send, then receive: every rank waits for the next one to receive, and nobody does.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    dist.send(outgoing, ring[(place + 1) % len(ring)])
    dist.recv(incoming, ring[place - 1])
