# score: 19
# hint: at the same time, whichever neighbour is ready first
# The first rank sends and all others wait for it in turn: a token goes round, and every step takes
# as long as a round.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    if place == 0:
        dist.send(outgoing, ring[1])
        dist.recv(incoming, ring[-1])
    else:
        dist.recv(incoming, ring[place - 1])
        dist.send(outgoing, ring[(place + 1) % len(ring)])
