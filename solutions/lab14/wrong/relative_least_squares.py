# score: 19.5 to 21
# hint: near to most
# Least squares of relative distances: right, until a point is wrong.

# %% fitted_line
def line(points):
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean = sum(w * x for w, (x, _) in zip(weights, points, strict=False)) / total
    mean_s = sum(w * y for w, (_, y) in zip(weights, points, strict=False)) / total
    above = sum(w * (x - mean) * (y - mean_s) for w, (x, y) in zip(weights, points, strict=False))
    slope = max(
        1e-18, above / sum(w * (x - mean) ** 2 for w, (x, _) in zip(weights, points, strict=False))
    )
    return max(0.0, mean_s - slope * mean), 1 / slope
