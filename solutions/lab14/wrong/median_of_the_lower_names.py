# score: 22
# hint: of a name that was not measured
# Of an even number of names the lower of the two in the middle is taken.

# %% alone
from statistics import median_low


def product_s(products: list[dict], flops: float, size_bytes: float) -> float:
    """Seconds of a matrix product that need not have been measured.

    - `products` are probes with `flops`, `size_bytes` and `times_s`, in any order, of which the
      shortest time counts. Their names do not matter.
    - The wanted one is between the measured ones, in operations and in operations a byte, or is
      one of them.
    - Points by the mean error on made-up machines. All: at most that of the judge's own way (the
      four nearest) and two percentage points more. None: that of the highest rate that any
      measured product reaches, taken for all.
    """
    wanted = math.log(flops), math.log(flops / size_bytes)
    near = []
    for one in products:
        place = math.log(one["flops"]), math.log(one["flops"] / one["size_bytes"])
        rate = one["flops"] / best_s(one["times_s"])
        near.append((math.dist(wanted, place), math.log(rate)))
    weights = [(1 / max(distance, 1e-6) ** 2, rate) for distance, rate in sorted(near)[:4]]
    mean = sum(one * rate for one, rate in weights) / sum(one for one, _ in weights)
    return flops / math.exp(mean)


def pass_s(passes: list[dict], name: str, size_bytes: float) -> float:
    """Seconds of an operator that passes over memory.

    - `passes` are probes with `name`, `size_bytes` and `times_s`, in any order, of which the
      shortest time counts. Those of this name count.
    - Between two measured sizes: on a straight line through the logarithms of both.
    - Below the smallest: its time. Above the largest: its time, times size_bytes over its bytes.
    - A name that was not measured takes the median over all names that were.
    """
    names = {one["name"] for one in passes}
    if name not in names:
        return median_low(pass_s(passes, one, size_bytes) for one in names)
    known = [(one["size_bytes"], best_s(one["times_s"])) for one in passes if one["name"] == name]
    known.sort()
    if size_bytes <= known[0][0]:
        return known[0][1]
    for (size, time_s), (larger, longer_s) in itertools.pairwise(known):
        if size_bytes <= larger:
            share = math.log(size_bytes / size) / math.log(larger / size)
            return time_s * (longer_s / time_s) ** share
    return known[-1][1] * size_bytes / known[-1][0]
