# score: 23.5
# The median comes from a function that wants two times or more: a single time raises an error.


# %% which_time
from statistics import quantiles


def best_s(times_s):
    return min(times_s)


def spread_fraction(times_s):
    (middle,) = quantiles(times_s, n=2)
    return middle / min(times_s) - 1
