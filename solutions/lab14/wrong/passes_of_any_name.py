# score: 20.5 to 22
# hint: by its own name
# The probe of the nearest size stands for a pass, whatever its name.

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
    one = min(passes, key=lambda one: abs(math.log(one["size_bytes"] / size_bytes)))
    return best_s(one["times_s"]) * size_bytes / one["size_bytes"]
