"""Which all-reduce is fastest? The formulas are the reader's own."""

from functools import partial
from math import log2

from worldsize import draw, hardware, units
from worldsize.explore import explore


def ring(size_bytes, num_ranks, link):
    return 2 * (num_ranks - 1) * (link.latency_s + size_bytes / num_ranks / link.bandwidth_bytes_per_s)


def tree(size_bytes, num_ranks, link):
    return 2 * log2(num_ranks) * (link.latency_s + size_bytes / link.bandwidth_bytes_per_s)


def halving_and_doubling(size_bytes, num_ranks, link):
    transfer_s = size_bytes * (num_ranks - 1) / num_ranks / link.bandwidth_bytes_per_s
    return 2 * (log2(num_ranks) * link.latency_s + transfer_s)


def all_reduce(size_bytes=units.MIB, num_ranks=64, link=hardware.NVLINK4):
    algorithms = {"ring": ring, "tree": tree, "halving and doubling": halving_and_doubling}
    costs = {name: partial(formula, num_ranks=num_ranks, link=link) for name, formula in algorithms.items()}
    picture = draw.cost(costs, (units.KIB, 4 * units.GIB), title=f"All-reduce on {num_ranks} ranks over {link.name}")
    picture.axes[0].axvline(size_bytes, color="#333333", linewidth=1)
    return {"time_s": {name: time_s(size_bytes) for name, time_s in costs.items()}}, picture


explore(
    all_reduce,
    num_ranks=(2, 1024, "x2"),
    size_bytes=(units.KIB, 4 * units.GIB),
    link=[hardware.NVLINK4, hardware.PCIE5, hardware.IB_NDR],
)
