# score: 19
# hint: ahead of the slowest
# A worker is compared with the average of all, not with the slowest.


# %% may_start
def may_start(steps_done, worker, staleness_bound):
    return steps_done[worker] - sum(steps_done.values()) / len(steps_done) <= staleness_bound
