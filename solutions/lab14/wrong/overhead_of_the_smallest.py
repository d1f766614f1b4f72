# score: 21 to 22.5
# hint: beside a wrong one
# The overhead is that of the smallest program, the slowdown that of the largest: one may be wrong.

# %% in_program
def in_program(phases, alone_s):
    found = []
    for one in phases:
        num = len(one["operators"])
        mean_s = sum(alone_s(*each) for each in one["operators"]) / num
        found.append((mean_s, best_s(one["times_s"]) / num))
    (small_s, first_s), (large_s, last_s) = min(found), max(found)
    slowdown = (last_s - first_s) / (large_s - small_s)
    return first_s - slowdown * small_s, slowdown
