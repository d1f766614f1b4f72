"""How long does a collective take?

A collective takes a latency, the same for any size, and its bytes over a bandwidth. Small tensors are
**latency-bound**: the left of the chart is flat. Large ones are **bandwidth-bound**: twice the bytes take twice the
time.

A ring of N ranks all-reduces S bytes in 2(N − 1) steps, and each rank sends 2(N − 1)/N · S bytes. With a latency of α
for each step and a bandwidth of β:

> time = 2(N − 1) · α + 2(N − 1)/N · S/β

The latency grows with N; the bytes of a rank never exceed 2S, and all links carry them at the same time. **Bus
bandwidth** is 2(N − 1)/N · S over the time, with (N − 1)/N for the other collectives here. So for a large tensor it is
β, whatever N is, and nccl-tests prints it for this reason. NVLS is the exception: NVLink switches add, so each rank
sends little more than S, and the formula counts more bytes than the links carried.

Sizes count as in nccl-tests: the whole tensor for all-reduce, all-gather and reduce-scatter, and all that one rank
holds for all-to-all. The protocols LL and LL128 have a low latency and a low bandwidth, Simple has the opposite. NCCL
estimates every algorithm with every protocol and takes the fastest; so does `worldsize.pricing`, with NCCL's own
constants. Its median deviation from 65 published figures above 16 MiB is [2%, at worst 20%](../docs/clusters.md). From
20 figures of smaller sizes it is 8%, and a single one took 1.9 times as long. Not modelled: other jobs on the network,
and sums in the network's switches.

- Set A100 with InfiniBand and 1 MiB. From 16 to 512 GPUs the time only doubles, because NCCL takes a tree, whose
  latency grows with the logarithm of the number of nodes. The ring's time grows by a factor of twenty.
- Keep A100 with InfiniBand and set 16 GiB. From 16 to 512 GPUs the bus bandwidth falls by only 5%. On H100, where NCCL
  takes an NVLS tree, it falls by 21%.
- Set an all-to-all of 1 GiB on 8 H100 and then on 16. It takes over four times as long: half of a rank's bytes now
  cross its network card, at an eighth of NVLink's bandwidth. The all-reduce takes only 14% longer.

[Week 2](../weeks/week02_all_reduce_from_scratch.ipynb) writes these algorithms and measures them.
"""

from __future__ import annotations

from collections.abc import Iterator

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize import hardware
from worldsize.pricing import ALGORITHMS, Price, bus_factor, price
from worldsize.units import GIB, KIB, format_as, format_bytes, format_time_s, number_of, significant

CLUSTERS = {
    "B200, InfiniBand 8 x 400 Gb/s": "b200-ndr",
    "H100, InfiniBand 8 x 400 Gb/s": "h100-ndr",
    "A100, InfiniBand 8 x 200 Gb/s": "a100-hdr",
    "A100, Ethernet 100 Gb/s": "a100-100gbe",
    "A100 PCIe, Ethernet 10 Gb/s": "pcie-box-10gbe",
}
OPS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
}
NAMES = {"nccl-ring": "ring", "nccl-tree": "tree", "nvls": "NVLS", "nvls-tree": "NVLS tree", "p2p": "point to point"}
CHOICE = "NCCL's choice"
_LARGEST = 16 * GIB
QUESTION = Question(
    "NCCL all-reduces 1 GiB among the 8 H100 of one node by NVLS: the NVLink switches add, so each GPU sends an eighth "
    "more than the tensor instead of a ring's 1.75 GiB. NCCL counts on 315 of NVLink's 450 GB/s from each. How many ms "
    "does it take?",
    "ms",
    "1.125 GiB at 315 GB/s take 3.83 ms, and the start 0.02. A ring takes 5.21 ms: it has more of each link, 371 GB/s, "
    "but idles between its steps, and sends 1.75 GiB.",
)
LABELS = {"op": "collective", "cluster": "nodes of 8 GPUs", "num_gpus": "GPUs", "size_bytes": "size"}
RANGES = {"op": OPS, "cluster": CLUSTERS, "num_gpus": (2, 1024, "x2"), "size_bytes": (KIB, _LARGEST, "x2")}


def answer(op: str = "all_reduce", cluster: str = "h100-ndr", num_gpus: int = 8, size_bytes: int = GIB) -> Answer:
    """NCCL's choice beside each algorithm that it has for this collective."""
    place = placed(cluster, num_gpus)
    ranks = range(num_gpus)
    chosen = price(op, size_bytes, ranks, place)
    forced = {one.algorithm: one for one in _forced(op, size_bytes, num_gpus, place)} or {chosen.algorithm: chosen}
    name = next(text for text, value in OPS.items() if value == op)
    article = "An" if name.startswith("a") else "A"
    bus, best = _bus(op, chosen, size_bytes, num_gpus), price(op, _LARGEST, ranks, place)
    share = bus / _bus(op, best, _LARGEST, num_gpus)
    half = format_bytes(half_latency_bytes(op, num_gpus, place), binary=True)
    sizes = [KIB * 2**power for power in range(25)]
    series = {CHOICE: [(size, price(op, size, ranks, place).time_s) for size in sizes]}
    if len(forced) > 1:
        series |= {NAMES[key]: [(s, price(op, s, ranks, place, key).time_s) for s in sizes] for key in forced}
    return Answer(
        f"{article} {name} of {format_as('size_bytes', size_bytes)} among {num_gpus:,} {place.gpu.name} on "
        f"{number_of(place.num_nodes, 'node')} takes {format_time_s(chosen.time_s)}: {significant(100 * share, 2)}% of "
        f"the bus bandwidth at {format_as('size_bytes', _LARGEST)}. Up to {half}, latency is more than half "
        f"of the time.",
        chosen.time_s * 1e3,
        ("algorithm", "protocol", "time", "bus bandwidth", "sent by each rank"),
        [
            [
                NAMES[one.algorithm] + (f", {CHOICE}" if one.algorithm == chosen.algorithm else ""),
                one.protocol,
                format_time_s(one.time_s),
                f"{format_bytes(_bus(op, one, size_bytes, num_gpus))}/s",
                format_bytes(one.sent_bytes_per_rank, binary=True),
            ]
            for one in forced.values()
        ],
        charts.lines(series, "bytes", "seconds", [(size_bytes, chosen.time_s)], wide=CHOICE),
    )


def placed(cluster: str, num_gpus: int) -> hardware.Cluster:
    """The cluster with as many nodes as these GPUs fill."""
    found = hardware.cluster(cluster)
    return found.with_nodes(-(-num_gpus // found.gpus_per_node))


def _forced(op: str, size_bytes: float, num_gpus: int, place: hardware.Cluster) -> Iterator[Price]:
    """The price of each of NCCL's algorithms that can do it."""
    for algorithm in ALGORITHMS:
        if algorithm != "ring":  # the textbook's
            try:
                yield price(op, size_bytes, range(num_gpus), place, algorithm)
            except ValueError:
                continue


def _bus(op: str, one: Price, size_bytes: float, num_gpus: int) -> float:
    return bus_factor(op, num_gpus) * size_bytes / one.time_s


def half_latency_bytes(op: str, num_gpus: int, place: hardware.Cluster) -> float:
    """The size that takes twice as long as no bytes at all, by bisection."""
    ranks = range(num_gpus)
    limit_s = 2 * price(op, 0, ranks, place).time_s
    low, high = 0.0, float(_LARGEST)
    while high - low > 0.01 * high:
        middle = (low + high) / 2 if low == 0 else (low * high) ** 0.5
        low, high = (middle, high) if price(op, middle, ranks, place).time_s < limit_s else (low, middle)
    return high
