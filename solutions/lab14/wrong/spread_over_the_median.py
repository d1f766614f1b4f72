# score: 23.5
# hint: The median over the shortest
# The spread is a fraction of the median, not of the shortest.

# %% which_time
def best_s(times_s):
    return min(times_s)


def spread_fraction(times_s):
    return 1 - min(times_s) / median(times_s)
