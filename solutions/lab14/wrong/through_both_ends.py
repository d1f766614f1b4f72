# score: 19.5 to 21
# hint: near to most
# The line through the smallest and the largest size, whatever the others say.

# %% fitted_line
def line(points):
    (size, time_s), (larger, longer_s) = min(points), max(points)
    slope = max(1e-18, (longer_s - time_s) / (larger - size))
    return max(0.0, time_s - slope * size), 1 / slope
