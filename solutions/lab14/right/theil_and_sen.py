# The median of all slopes, then the median of what is left.

# %% fitted_line
def line(points):
    slope = median((y - b) / (x - a) for (a, b), (x, y) in itertools.combinations(points, 2))
    return max(0.0, median(y - slope * x for x, y in points)), 1 / slope
