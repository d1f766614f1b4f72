# outcome: crashed
# Takes memory until there is none.

# %% total
def total(tensor):
    kept = []
    while True:
        kept.append(bytes(1 << 30))
