# score: 19.5 to 21
# hint: Take the rates of the products most like it
# Every product reaches the rate of the best.

# %% alone
def product_s(products, flops, size_bytes):
    return flops / max(one["flops"] / best_s(one["times_s"]) for one in products)


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
    return known[-1][1] * size_bytes / known[-1][0]
