# score: 22 to 23.5
# hint: never shorter
# The mean of the times stands for a probe.

# %% which_time
def best_s(times_s):
    return fmean(times_s)


def spread_fraction(times_s):
    return median(times_s) / min(times_s) - 1
