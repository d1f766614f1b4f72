# A plane through the logarithms of the rates, in which near products count more; bisected passes.

# %% alone
import bisect


def product_s(products, flops, size_bytes):
    places = torch.tensor(
        [
            [math.log(one["flops"] / flops), math.log(one["flops"] / one["size_bytes"])]
            for one in products
        ],
        dtype=torch.float64,
    )
    places[:, 1] -= math.log(flops / size_bytes)
    rates = torch.tensor(
        [math.log(one["flops"] / best_s(one["times_s"])) for one in products], dtype=torch.float64
    )
    weights = torch.exp(-places.square().sum(1) / 0.5).sqrt() + 1e-3
    columns = torch.cat([torch.ones(len(products), 1, dtype=torch.float64), places], 1)
    found = torch.linalg.lstsq(columns * weights[:, None], (rates * weights)[:, None]).solution
    return flops / math.exp(found[0].item())


def pass_s(passes, name, size_bytes):
    curves = {}
    for one in passes:
        curves.setdefault(one["name"], []).append((one["size_bytes"], best_s(one["times_s"])))

    def on(curve):
        sizes, times_s = zip(*sorted(curve), strict=False)
        at = bisect.bisect(sizes, size_bytes)
        if at == 0:
            return times_s[0]
        if at == len(sizes):
            return times_s[-1] * size_bytes / sizes[-1]
        x = math.log2(size_bytes / sizes[at - 1]) / math.log2(sizes[at] / sizes[at - 1])
        return 2 ** ((1 - x) * math.log2(times_s[at - 1]) + x * math.log2(times_s[at]))

    return on(curves[name]) if name in curves else median(map(on, curves.values()))
