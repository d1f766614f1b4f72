# score: 19.5
# hint: its own count belongs among the others
# A worker is compared with all others: one that has no others raises an error.


# %% may_start
def may_start(steps_done, worker, staleness_bound):
    others = [done for one, done in steps_done.items() if one != worker]
    return steps_done[worker] - min(others) <= staleness_bound
