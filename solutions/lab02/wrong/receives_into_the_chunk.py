# score: 17.5
# hint: add to your own what comes in
# What comes in replaces the rank's own part, and nothing is added.


# %% ring_reduce_scatter
def ring_reduce_scatter(chunks, ring):
    place = ring.index(dist.get_rank())
    for step in range(1, len(ring)):
        exchange(chunks[place - step], chunks[place - step - 1], ring)
