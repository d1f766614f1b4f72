# score: 17.5 to 19
# hint: Small sizes count as much
# Bytes over seconds, the median of all sizes, and no floor.

# %% fitted_line
def line(points):
    return 0.0, median(size / time_s for size, time_s in points)
