# score: 19
# hint: at the same time, whichever neighbour is ready first
# No deadlock, by blocking calls in another order on every second place: a link is never used in
# both directions.


# %% exchange
def exchange(outgoing, incoming, ring):
    place = ring.index(dist.get_rank())
    if place % 2 == 0:
        dist.send(outgoing, ring[(place + 1) % len(ring)])
        dist.recv(incoming, ring[place - 1])
    else:
        dist.recv(incoming, ring[place - 1])
        dist.send(outgoing, ring[(place + 1) % len(ring)])
