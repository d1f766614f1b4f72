# The line of two points with the least sum of distances, without those that may be wrong.

# %% fitted_line
def line(points):
    num = len(points) - (len(points) - 1) // 5
    best = (math.inf, 0.0, 1.0)
    for (a, b), (x, y) in itertools.combinations(sorted(points), 2):
        if y > b:
            rate = (x - a) / (y - b)
            floor_s = max(0.0, b - a / rate)
            off = sorted(abs((floor_s + size / rate) / time_s - 1) for size, time_s in points)
            best = min(best, (sum(off[:num]), floor_s, rate))
    return best[1:]
