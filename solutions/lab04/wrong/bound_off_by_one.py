# score: 19
# hint: is the most that is allowed
# Exactly the bound is already too far: with a bound of 0 nobody may ever start.


# %% may_start
def may_start(steps_done, worker, staleness_bound):
    return steps_done[worker] - min(steps_done.values()) < staleness_bound
