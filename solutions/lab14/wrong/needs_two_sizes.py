# score: 22
# hint: longer_s
# Above the largest size the last pair of sizes is asked, which a name with one probe does not have.


# %% alone
def product_s(products, flops, size_bytes):
    wanted = math.log(flops), math.log(flops / size_bytes)
    near = []
    for one in products:
        place = math.log(one["flops"]), math.log(one["flops"] / one["size_bytes"])
        rate = one["flops"] / best_s(one["times_s"])
        near.append((math.dist(wanted, place), math.log(rate)))
    weights = [(1 / max(distance, 1e-6) ** 2, rate) for distance, rate in sorted(near)[:4]]
    mean = sum(one * rate for one, rate in weights) / sum(one for one, _ in weights)
    return flops / math.exp(mean)


def pass_s(passes, name, size_bytes):
    names = {one["name"] for one in passes}
    if name not in names:
        return median(pass_s(passes, one, size_bytes) for one in names)
    known = [(one["size_bytes"], best_s(one["times_s"])) for one in passes if one["name"] == name]
    known.sort()
    if size_bytes <= known[0][0]:
        return known[0][1]
    for (size, time_s), (larger, longer_s) in itertools.pairwise(known):
        if size_bytes <= larger:
            share = math.log(size_bytes / size) / math.log(larger / size)
            return time_s * (longer_s / time_s) ** share
    return longer_s * size_bytes / larger
