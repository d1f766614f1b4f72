# score: 17.5 to 19
# hint: Small sizes count as much
# Least squares of the times: the largest size decides alone.

# %% fitted_line
def line(points):
    sizes, times_s = [x for x, _ in points], [y for _, y in points]
    mean, mean_s = fmean(sizes), fmean(times_s)
    slope = sum((x - mean) * (y - mean_s) for x, y in points) / sum((x - mean) ** 2 for x in sizes)
    slope = max(slope, 1e-18)
    return max(0.0, mean_s - slope * mean), 1 / slope
