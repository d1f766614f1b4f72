# score: 21
# hint: near to most
# Each choice of points that may be wrong is left out, and the best fit of the others taken; but two
# points at most, where of sixteen three may be wrong.


# %% fitted_line
def line(points):
    num_wrong, found = min(2, (len(points) - 1) // 5), []
    for kept in itertools.combinations(sorted(points), len(points) - num_wrong):
        ones = sum(1 / time_s**2 for _, time_s in kept)
        mixed = sum(size / time_s**2 for size, time_s in kept)
        squares = sum((size / time_s) ** 2 for size, time_s in kept)
        first = sum(1 / time_s for _, time_s in kept)
        second = sum(size / time_s for size, time_s in kept)
        floor_s = (first * squares - mixed * second) / (ones * squares - mixed**2)
        floor_s = max(0.0, floor_s)
        slope = (second - floor_s * mixed) / squares
        if slope > 0:
            off = sum(((floor_s + slope * size) / time_s - 1) ** 2 for size, time_s in kept)
            found.append((off, floor_s, 1 / slope))
    return min(found)[1:]
