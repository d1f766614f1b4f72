# score: 19.5 to 21
# hint: near to most
# The distance |line / time - 1| is never above 1 where the line is too low.

# %% fitted_line
def line(points):
    found = []
    for (size, time_s), (larger, longer_s) in itertools.combinations(sorted(points), 2):
        if longer_s > time_s:
            slope = (longer_s - time_s) / (larger - size)
            floor_s = max(0.0, time_s - slope * size)
            off = sum(abs((floor_s + slope * one) / its_s - 1) for one, its_s in points)
            found.append((off, floor_s, 1 / slope))
    return min(found)[1:]
