"""Published NCCL figures beside the model's: run as a script, it prints the table and draws build/collectives.png."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from repository import ROOT

from worldsize import hardware
from worldsize.draw.picture import Picture
from worldsize.hardware import Cluster
from worldsize.palette import BLUE, ORANGE, SKY, VERMILLION
from worldsize.pricing import bus_factor, price
from worldsize.units import GB, GIB, MIB, US, format_bytes

CSV = ROOT / "tests/data/collectives.csv"
PICTURE = ROOT / "build" / "collectives.png"
SERIES = [(SKY, "-", "o"), (ORANGE, "--", "s"), (BLUE, ":", "^"), (VERMILLION, "-.", "D")]
MEASURED = ("busbw", "busbw_curve", "p2p")
SMALL_BYTES = 16 * MIB  # at most: latencies count, which the tuner's model has only on the whole
LARGE_BYTES = 256 * MIB
# The slide says "large"; nccl-tests runs usually end at 8 or 16 GiB.
SIZE_BYTES = {"large": 16 * GIB, "": GIB}

# How independent of a figure the model is.
GIVEN = "given"  # the figure is the link's rate in the catalogue
FITTED = "fitted"  # the figure was among those that pricing.FITTED was fitted to
PREDICTED = "predicted"  # the figure is in the csv and went into no constant
HELD_OUT = "held out"  # the figure was found outside the csv

LEFT_OUT = {
    "gtc24_DGX480": "SHARP in the network is not modelled",
    "gen4n_": "the source does not say on which fabric the example ran",
    "jz_v100_n4": "Omni-Path is not in the catalogue",
    "jz_v100_n16": "Omni-Path is not in the catalogue; the network's rate fluctuates",
    "jz_a100_": "Omni-Path is not in the catalogue; an early result at a quarter of the link's rate",
}


@dataclass(frozen=True)
class Compared:
    """A published figure and the model's for the same case, both as bus bandwidth in bytes per second."""

    name: str
    role: str
    op: str
    size_bytes: int
    num_ranks: int
    published_bytes_per_s: float
    modelled_bytes_per_s: float
    how: str

    @property
    def error_fraction(self) -> float:
        """The model's bus bandwidth over the published one, less 1."""
        return self.modelled_bytes_per_s / self.published_bytes_per_s - 1


def rows() -> list[dict[str, str]]:
    """The measured rows of the csv."""
    with CSV.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["kind"] in MEASURED]


def why_left_out(name: str) -> str | None:
    """The reason why a row of the csv is not compared; None where it is."""
    return next((why for prefix, why in LEFT_OUT.items() if name.startswith(prefix)), None)


def compared() -> list[Compared]:
    """Every comparison: the csv's rows, the ring's figures in their notes, and the held-out reports."""
    return [found for row in rows() if why_left_out(row["id"]) is None for found in _of_row(row)] + list(_held_out())


def median_error(found: Iterable[Compared]) -> float:
    """The median absolute relative error, as a fraction."""
    return statistics.median(abs(one.error_fraction) for one in found)


def worst(found: Iterable[Compared]) -> Compared:
    """The comparison with the largest absolute error."""
    return max(found, key=lambda one: abs(one.error_fraction))


def report(found: Iterable[Compared]) -> str:
    """The tables of large and of small sizes, each with its median error and its worst."""
    found = list(found)
    parts = []
    for title, sizes in [
        (f"More than {format_bytes(SMALL_BYTES, binary=True)}", [one for one in found if one.size_bytes > SMALL_BYTES]),
        (f"At most {format_bytes(SMALL_BYTES, binary=True)}", [one for one in found if one.size_bytes <= SMALL_BYTES]),
    ]:
        last = worst(sizes)
        parts.append(
            f"{title}: {len(sizes)} figures, median error {median_error(sizes):.1%}, "
            f"worst {last.error_fraction:+.1%} ({last.name})\n{table(sizes)}"
        )
    return "\n\n".join(parts)


def table(found: Iterable[Compared]) -> str:
    """One line for each comparison: case, published and modelled bus bandwidth in GB/s, error in percent."""
    lines = [f"{'case':32} {'role':10} {'ranks':>5} {'size':>10} {'published':>9} {'model':>9} {'error':>7}  how"]
    lines += [
        f"{one.name:32} {one.role:10} {one.num_ranks:5} {format_bytes(one.size_bytes, binary=True):>10} "
        f"{one.published_bytes_per_s / GB:9.2f} {one.modelled_bytes_per_s / GB:9.2f} "
        f"{one.error_fraction:+7.1%}  {one.how}"
        for one in found
    ]
    return "\n".join(lines)


def picture(found: Iterable[Compared]) -> Picture:
    """Left the A100 node's all-reduce over sizes, right every large size: published against modelled."""
    found = list(found)
    drawn = Picture(11, 4.6)
    curve, large = drawn.subplots(1, 2)
    of_node = [one for one in found if one.name.startswith("vtrain_ar_A100")]
    for num_ranks, (colour, style, marker) in zip(sorted({one.num_ranks for one in of_node}), SERIES, strict=False):
        points = sorted((one for one in of_node if one.num_ranks == num_ranks), key=lambda one: one.size_bytes)
        sizes = [one.size_bytes / MIB for one in points]
        label = f"{num_ranks} GPUs"
        curve.plot(
            sizes, [one.modelled_bytes_per_s / GB for one in points], style, color=colour, label=f"{label}, model"
        )
        published = [one.published_bytes_per_s / GB for one in points]
        curve.plot(sizes, published, marker, color=colour, label=f"{label}, published")
    curve.set(xscale="log", xlabel="size (MiB)", ylabel="bus bandwidth (GB/s)", title="All-reduce on one A100 node")
    curve.legend(frameon=False, fontsize=8)
    many = [one for one in found if one.size_bytes >= LARGE_BYTES]
    for role, (colour, _, marker) in zip((GIVEN, FITTED, PREDICTED, HELD_OUT), SERIES, strict=True):
        of_role = [one for one in many if one.role == role]
        points = [(one.published_bytes_per_s / GB, one.modelled_bytes_per_s / GB) for one in of_role]
        large.plot(*zip(*points, strict=True), marker, color=colour, label=f"{role} ({len(points)})")
    ends = (
        0.8 * min(one.published_bytes_per_s for one in many) / GB,
        1.2 * max(one.published_bytes_per_s for one in many) / GB,
    )
    large.plot(ends, ends, "-", color="#333333", linewidth=0.8)
    large.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#DDDDDD", label="10%")
    large.set(xscale="log", yscale="log", xlabel="published (GB/s)", ylabel="model (GB/s)", title="256 MiB and more")
    large.legend(frameon=False, fontsize=8)
    drawn.alt = (
        f"Bus bandwidth, published and modelled. A100 node over sizes: median error {median_error(of_node):.1%}. "
        f"{len(many)} large sizes on {len({one.name for one in many})} systems: median error {median_error(many):.1%}."
    )
    return drawn


def _of_row(row: dict[str, str]) -> Iterator[Compared]:
    cluster, num_ranks, role = _case(row)
    op, _, algorithm = row["collective"].partition(" ")
    op = {"memcpy": "send"}.get(op, op)
    size_bytes = _size_bytes(row["size"])
    forced = {"ring": "nccl-ring", "NVLS": "nvls"}.get(algorithm)
    published_bytes_per_s = float(row["value"]) * GB
    yield _compare(row["id"], role, op, size_bytes, num_ranks, published_bytes_per_s, cluster, forced)
    if off := re.search(r"NVLS off: ([\d.]+)", row["notes"]):
        name = f"{row['id']} off"
        yield _compare(name, FITTED, op, size_bytes, num_ranks, float(off[1]) * GB, cluster, "nccl-ring")


def _case(row: dict[str, str]) -> tuple[Cluster, int, str]:
    """The cluster, the number of ranks and the role of a row; the slide's networks are taken at four nodes of 8."""
    name = row["id"]
    if name.startswith("vtrain_ar_A100"):
        return hardware.DGX_A100, int(row["n_gpus"]), FITTED
    if name.startswith("vtrain_ar_V100"):
        role = FITTED if row["n_gpus"] in ("2", "4", "8") else PREDICTED
        return hardware.DGX_1V, int(row["n_gpus"]), role
    if name.startswith("mi300x"):
        return hardware.MI300X_NODE, int(row["n_gpus"]), PREDICTED
    if name.startswith("h200"):
        return hardware.DGX_H200, int(row["n_gpus"]), PREDICTED
    if name.startswith("b200"):
        return hardware.DGX_B200, int(row["n_gpus"]), PREDICTED
    if name.startswith("nvl72"):
        return replace(hardware.DGX_B200, name="gb200-nvl72", gpus_per_node=72), 72, FITTED
    # at PCIe the slide names no number of GPUs: two, so that no bridge limits
    return {
        "gtc24_PCIe24": (hardware.PCIE_BOX, 2, GIVEN),
        "gtc24_PCIe48": (replace(hardware.PCIE_BOX, intra=hardware.PCIE5), 2, GIVEN),
        "gtc24_NVLink2122": (hardware.DGX_1V, 8, PREDICTED),
        "jz_v100_n1": (hardware.V100_QUAD, 4, PREDICTED),
        "gtc24_NVLink3232": (hardware.DGX_A100, 8, PREDICTED),
        "gtc24_NVLink4370": (hardware.DGX_H100, 8, PREDICTED),
        "gtc24_NVLink4480": (hardware.DGX_H100, 8, PREDICTED),
        "gtc24_100GbE10": (hardware.A100_100GBE.with_nodes(4), 32, GIVEN),
        "gtc24_200Gb24": (replace(hardware.A100_HDR, nics_per_node=1, num_nodes=4), 32, GIVEN),
        "gtc24_400Gb48": (replace(hardware.H100_NDR, nics_per_node=1, num_nodes=4), 32, GIVEN),
        "gtc24_DGX192": (hardware.A100_HDR.with_nodes(4), 32, PREDICTED),
        "gtc24_DGX380": (hardware.H100_NDR.with_nodes(4), 32, PREDICTED),
    }[name]


def _held_out() -> Iterator[Compared]:
    """All-reduces from bug reports that no constant was fitted to, over nodes with the algorithm forced.

    Source: NVIDIA/nccl issue 812 (2023), 2 DGX A100, 93.12 us for 8 bytes; issue 1368 (2024), 5 nodes of 8 H100 and 4
    RoCE NICs of 400 Gb/s, 354.9 us for 1 MiB, 190 GB/s by ring and 150 GB/s by tree at the end of the run, 1 GiB.
    NVIDIA/nccl-tests issue 178 (2023), 8 A100 PCIe with bridged pairs, 208 GB/s on a pair and 20 GB/s on three GPUs, up
    to 12 GiB.
    """
    five_nodes = replace(hardware.H100_ROCE, nics_per_node=4, num_nodes=5)
    small = bus_factor("all_reduce", 16) * 8 / (93.12 * US)
    middle = bus_factor("all_reduce", 40) * MIB / (354.9 * US)
    for name, size_bytes, published_bytes_per_s, cluster, algorithm in [
        ("issue_812", 8, small, hardware.A100_HDR, "nccl-ring"),
        ("issue_1368", MIB, middle, five_nodes, "nccl-ring"),
        ("issue_1368", GIB, 190 * GB, five_nodes, "nccl-ring"),
        ("issue_1368", GIB, 150 * GB, five_nodes, "nccl-tree"),
    ]:
        num_ranks = cluster.world_size
        yield _compare(name, HELD_OUT, "all_reduce", size_bytes, num_ranks, published_bytes_per_s, cluster, algorithm)
    for num_ranks, published_bytes_per_s in [(2, 208 * GB), (3, 20 * GB)]:
        box = hardware.PCIE_BOX_BRIDGED
        yield _compare("issue_178", HELD_OUT, "all_reduce", 12 * GIB, num_ranks, published_bytes_per_s, box, None)


def _compare(
    name: str,
    role: str,
    op: str,
    size_bytes: int,
    num_ranks: int,
    published_bytes_per_s: float,
    cluster: Cluster,
    algorithm: str | None,
) -> Compared:
    if name == "gtc24_NVLink4370":
        algorithm = "nccl-ring"
    best = price(op, size_bytes, range(num_ranks), cluster, algorithm)
    modelled_bytes_per_s = bus_factor(op, num_ranks) * size_bytes / best.time_s
    how = f"{best.algorithm} {best.protocol}"
    return Compared(name, role, op, size_bytes, num_ranks, published_bytes_per_s, modelled_bytes_per_s, how)


def _size_bytes(text: str) -> int:
    if text in SIZE_BYTES:
        return SIZE_BYTES[text]
    match = re.fullmatch(r"(\d+)(MiB|GiB|GB)", text)
    assert match, text
    return int(match[1]) * {"MiB": MIB, "GiB": GIB, "GB": GB}[match[2]]


if __name__ == "__main__":
    print(report(compared()))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(picture(compared()).png())
