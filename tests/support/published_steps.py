"""Published training steps beside the same on paper: run as a script, it prints every row of tests/data for the bench.

No constant is fitted to any of them: kernels are priced by `worldsize.operators`, messages by `worldsize.pricing`. So a
source's error is that on a source left out. Which program stands for a row:

- pp 1, ZeRO-2 and 3 (MosaicML, DeepSpeed): `gpt_layers.sharded_step`, a whole step by FSDP2 on all GPUs, with as many
  layers as the line through 2 and 4 gives; its forward and backward once for each micro-batch.
- others (Megatron-LM, BLOOM, vTrain): `gpt_layers.micro_batch`, a rank's forward and backward, on the line through 1
  and 2 layers. The pipeline round it is a formula: all micro-batches on the slowest stage, and (pp - 1) / chunks on the
  others; messages between stages, the gradients' sum in float32 and the update follow without overlap.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import cloudpickle
import gpt_layers
from gpt_layers import Sizes
from repository import ROOT

import worldsize as ws
from worldsize import hardware
from worldsize.hardware import Cluster
from worldsize.models import Shape
from worldsize.operators import Operator, time_s
from worldsize.planning import Plan
from worldsize.pricing import price
from worldsize.units import GB, TB

CSV = ROOT / "tests/data/published_runs.csv"
PEERS_CSV = ROOT / "tests/data/peers_on_published_runs.csv"
_UPDATE_BYTES = 2 * 12 + 2 + 2  # a parameter's state read and written, its gradient read, its weight written
_A100_40GB = replace(
    hardware.A100,
    name="A100 SXM 40 GB",
    memory_bytes=40 * GB,
    memory_bandwidth_bytes_per_s=1.555 * TB,
    source="NVIDIA A100 data sheet (2021): 1,555 GB/s",
)
_OPA_100G = replace(
    hardware.ETHERNET_100G,
    name="Omni-Path 100 Gb/s",
    latency_s=hardware.IB_HDR.latency_s,
    kind="rdma",
    source="as Ethernet of 100 Gb/s, with InfiniBand's latency: our reading for Jean Zay, 2026",
)
_IB_100G = replace(_OPA_100G, name="InfiniBand EDR", source="half of HDR: our reading for vTrain's 800 Gb/s, 2026")


@dataclass(frozen=True)
class Step:
    """A published step and the same on paper."""

    name: str
    source: str
    published_s: float
    paper_s: float
    hfu_flops: float  # a GPU's operations in the step over its peak a second: the seconds at an HFU of 1
    in_series_s: float | None = None  # with FSDP2: all that a GPU computes and communicates, nothing side by side

    @property
    def error_fraction(self) -> float:
        return self.paper_s / self.published_s - 1


@dataclass(frozen=True)
class Errors:
    """A source's steps on paper, with nothing fitted: the median error, and with its sign.

    `corrected` is the median error once all steps are lengthened by one factor, the median over the other sources' rows
    of what is published over what is on paper; `anchored` the same with the factor of the source's first row, over its
    other rows; `constant` that of the null: every GPU at one HFU, the median over the other sources' rows.
    `own_factor` and `own_hfu` are what is left with the factor and with the HFU that fit the source itself best, so how
    well each ranks the source's rows; `in_series` is the error, with its sign, where nothing runs side by side.
    """

    source: str
    num_rows: int
    median: float
    bias: float
    corrected: float
    anchored: float | None
    constant: float
    own_factor: float
    own_hfu: float
    in_series: float | None

    @property
    def why_worse(self) -> str:
        """What the rows say of an error that is larger than one HFU's; empty where it is not."""
        if self.median <= self.constant:
            return ""
        if self.in_series is not None and self.in_series < 0:
            return f"{100 * self.in_series:+.0f}% with nothing side by side: more than what FSDP2 hides"
        off = f"{100 * self.own_factor:.1f}% off with a factor of its own, {100 * self.own_hfu:.1f}% with its own HFU"
        if self.num_rows == 1:
            return f"a single row, {100 * self.bias:+.0f}%: no more to see"
        if self.own_factor <= self.own_hfu:
            return f"its level alone: {off}"
        return f"its rows differ by what is not on paper: {off}"


def rows() -> list[dict[str, str]]:
    with CSV.open(newline="") as file:
        return list(csv.DictReader(file))


def why_left_out(row: dict[str, str]) -> str | None:
    """The reason why a row has no figure on paper; None where it has."""
    if row["gpu"].startswith("V100"):
        return "the DGX-2 is not in the catalogue"
    if "fp8" in row["precision"]:
        return "which products ran in float8 is not known"
    if not row["microbatch"] or not row["vpp"]:
        return "the source does not say the micro-batch or how it interleaved"
    return None


def source_of(row: dict[str, str]) -> str:
    name = row["source"].partition(" (")[0]
    return f"{name}, {row['gpu'][:4]}" if name.startswith("MosaicML") else name


def on_paper(row: dict[str, str]) -> Step:
    """A row's step on paper.

    Raises:
        ValueError: it is left out.
    """
    if why := why_left_out(row):
        raise ValueError(f"{row['id']}: {why}")
    is_sharded = row["zero_stage"] in ("2", "3")
    paper_s = _sharded_s(row) if is_sharded else _in_stages_s(row)
    flops = _hardware_flops(row) / int(row["n_gpus"])
    hfu_flops = flops / _cluster(row).gpu.peak_flops_per_s["bfloat16"]
    return Step(
        row["id"], source_of(row), published_s(row), paper_s, hfu_flops, _in_series_s(row) if is_sharded else None
    )


def errors(steps: Sequence[Step]) -> list[Errors]:
    """Every source's errors."""
    found = []
    for source in dict.fromkeys(one.source for one in steps):
        of_source = [one for one in steps if one.source == source]
        others = [one for one in steps if one.source != source]
        constant = statistics.median(one.hfu_flops / one.published_s for one in others)
        factor = statistics.median(one.published_s / one.paper_s for one in others)
        own_factor = statistics.median(one.published_s / one.paper_s for one in of_source)
        own_hfu = statistics.median(one.hfu_flops / one.published_s for one in of_source)
        in_series = [one.in_series_s / one.published_s - 1 for one in of_source if one.in_series_s is not None]
        first, *rest = of_source
        anchor = first.published_s / first.paper_s
        found.append(
            Errors(
                source,
                len(of_source),
                statistics.median(abs(one.error_fraction) for one in of_source),
                statistics.median(one.error_fraction for one in of_source),
                statistics.median(abs(factor * one.paper_s / one.published_s - 1) for one in of_source),
                statistics.median(abs(anchor * one.paper_s / one.published_s - 1) for one in rest) if rest else None,
                statistics.median(abs(one.hfu_flops / constant / one.published_s - 1) for one in of_source),
                statistics.median(abs(own_factor * one.paper_s / one.published_s - 1) for one in of_source),
                statistics.median(abs(one.hfu_flops / own_hfu / one.published_s - 1) for one in of_source),
                statistics.median(in_series) if in_series else None,
            )
        )
    return found


def peers() -> dict[str, dict[str, str]]:
    """What Calculon scored, by source or set of rows."""
    with PEERS_CSV.open(newline="") as file:
        return {row["source"]: row for row in csv.DictReader(file)}


def report(steps: Sequence[Step], found: Sequence[Errors]) -> str:
    """Every row, every source, then every source beside the guess of one HFU and beside Calculon."""
    lines = [f"{'row':26} {'published':>10} {'on paper':>10} {'error':>7} {'in series':>10}"]
    lines += [
        f"{one.name:26} {one.published_s:9.3f}s {one.paper_s:9.3f}s {100 * one.error_fraction:+6.1f}%"
        + ("" if one.in_series_s is None else f" {one.in_series_s:9.3f}s")
        for one in steps
    ]
    lines += ["", f"{'source':62} {'rows':>4} {'median':>7} {'bias':>7} {'factor':>7} {'anchor':>7} {'one HFU':>8}"]
    lines += [
        f"{one.source:62} {one.num_rows:4} {100 * one.median:6.1f}% {100 * one.bias:+6.1f}% "
        f"{100 * one.corrected:6.1f}% {'' if one.anchored is None else f'{100 * one.anchored:.1f}%':>7} "
        f"{100 * one.constant:7.1f}%"
        for one in found
    ]
    lines += ["", *beside(found)]
    left = {}
    for row in rows():
        if row["part"] == "bench" and (why := why_left_out(row)):
            left.setdefault((source_of(row), why), []).append(row["id"])
    lines += ["", *(f"left out: {len(ids)} rows of {source}: {why}" for (source, why), ids in left.items())]
    return "\n".join(lines)


def beside(found: Sequence[Errors]) -> list[str]:
    """A line for each source: its error, that of one HFU, Calculon's, and why ours is the larger where it is."""
    of_peer = peers()
    lines = [f"{'source':44} {'on paper':>8} {'one HFU':>8} {'Calculon':>16}"]
    for one in found:
        peer = of_peer.pop(one.source, None)
        theirs = f"{peer['median_error_percent']}% of {peer['num_rows']}" if peer else ""
        text = f"{one.source:44.44} {100 * one.median:7.1f}% {100 * one.constant:7.1f}% {theirs:>16}  {one.why_worse}"
        lines.append(text.rstrip())
    lines += [
        f"Calculon, {name}: {row['median_error_percent']}% of {row['num_rows']} rows" for name, row in of_peer.items()
    ]
    return lines


def plan_of(row: dict[str, str]) -> Plan:
    """The layout of a row, whose layers are those of a GPT with biases."""
    sizes = {"layers": "num_layers", "hidden": "width", "heads": "num_heads", "kv_heads": "num_kv_heads"}
    sizes |= {"ffn": "hidden_width", "vocab": "vocab_size", "seq": "context_length"}
    return Plan(
        model=Shape(
            name=row["model"],
            family="gpt",
            **{name: int(row[column]) for column, name in sizes.items()},
            source=f"{row['source_ref']}, read in 2026",
        ),
        cluster=_cluster(row),
        global_batch=int(row["global_batch_seqs"]),
        length=int(row["seq"]),
        dp=int(row["dp"]),
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        cp=1,
        micro_batch=int(row["microbatch"]),
        num_chunks=int(row["vpp"]),
        recompute=row["recompute"],
        zero_stage=int(row["zero_stage"][0]),
    )


def published_s(row: dict[str, str]) -> float:
    return float(row["iter_time_s"] or row["iter_time_s_derived"])


def _sharded_s(row: dict[str, str]) -> float:
    of_update_s = _on_the_line_s(row, "update")
    run = _sharded(_sizes(row), int(row["layers"]), _cluster(row))
    return _num_micro_batches(row) * (run.step_s - of_update_s) + of_update_s


def _in_series_s(row: dict[str, str]) -> float:
    of_update_s = _on_the_line_s(row, "update")
    return _num_micro_batches(row) * (_on_the_line_s(row) - of_update_s) + of_update_s


def _on_the_line_s(row: dict[str, str], kind: str = "") -> float:
    """The seconds of a rank's events of this kind, or of all, on the line through two depths."""
    runs = _sharded(_sizes(row), int(row["layers"]), _cluster(row)).runs
    shallow_s, deep_s = (_seconds(runs[depth], kind) for depth in (2, 4))
    return shallow_s + (deep_s - shallow_s) * (int(row["layers"]) - 2) / 2


def _in_stages_s(row: dict[str, str]) -> float:
    num_layers, tp, pp, dp = (int(row[name]) for name in ("layers", "tp", "pp", "dp"))
    num_chunks, num_micro, cluster, sizes = int(row["vpp"]), _num_micro_batches(row), _cluster(row), _sizes(row)
    if num_layers == 1:
        return ws.paper(
            gpt_layers.micro_batch, 1, replace(sizes, has_ends=False), world_size=tp, cluster=cluster, echo=False
        ).step_s
    one_s, two_s = (run.step_s for run in _split(sizes, cluster).runs.values())
    layer_s = two_s - one_s
    ends_s, stage_s = one_s - layer_s, num_layers / pp * layer_s
    total_s = num_micro * (stage_s + ends_s) + (pp - 1) / num_chunks * stage_s
    if pp > 1:
        size_bytes = 2 * sizes.micro_batch * sizes.length * sizes.width / tp
        send_s = price("send", size_bytes, [0, tp * dp], cluster).time_s
        total_s += 2 * num_micro * num_chunks * send_s
    num_parameters = (_num_layer_parameters(row) * num_layers / pp + sizes.vocab_size * sizes.width) / tp
    if dp > 1:
        total_s += price("all_reduce", 4 * num_parameters, range(0, tp * dp, tp), cluster).time_s
    if row["zero_stage"] == "1":
        num_parameters /= dp
    return total_s + time_s(Operator("elementwise", "float32", 0, _UPDATE_BYTES * num_parameters), cluster.gpu)


@cache
def _sharded(sizes: Sizes, num_layers: int, cluster: Cluster) -> ws.DeepRun:
    cloudpickle.register_pickle_by_value(gpt_layers)
    num_gpus = cluster.world_size
    return ws.paper(
        gpt_layers.sharded_step, num_layers, sizes, world_size=num_gpus, cluster=cluster, depths=(2, 4), echo=False
    )


@cache
def _split(sizes: Sizes, cluster: Cluster) -> ws.DeepRun:
    cloudpickle.register_pickle_by_value(gpt_layers)
    return ws.paper(gpt_layers.micro_batch, 2, sizes, world_size=sizes.tp, cluster=cluster, depths=(1, 2), echo=False)


def _seconds(run: ws.PaperRun, kind: str) -> float:
    """The seconds of rank 0's events of this kind, or of all but its waits."""
    events = (event for event in run.timeline.of(0) if (event.kind == kind if kind else event.kind != "wait"))
    return sum(event.end_s - event.start_s for event in events)


def _sizes(row: dict[str, str]) -> Sizes:
    tp = int(row["tp"])
    return Sizes(
        width=int(row["hidden"]),
        num_heads=int(row["heads"]),
        num_kv_heads=int(row["kv_heads"]),
        hidden_width=int(row["ffn"]),
        vocab_size=int(row["vocab"]),
        length=int(row["seq"]),
        micro_batch=int(row["microbatch"]),
        tp=tp,
        recompute=row["recompute"],
        is_sequence_split=row["seq_parallel"] == "y",
        has_flash=row["flash_attn"] == "y",
        reduces_in="bfloat16" if "PURE" in row["precision"] else "float32",
    )


@cache
def _cluster_of(gpu: str, gbps: str, num_gpus: int) -> Cluster:
    """The cluster of a row; where the fabric is not stated, a NIC a GPU."""
    if gpu.startswith("H100"):
        found = hardware.H100_NDR
    else:
        found = hardware.A100_HDR
        if gbps == "400":
            found = replace(found, inter=_OPA_100G, nics_per_node=4)
        elif gbps == "800":
            found = replace(found, inter=_IB_100G, nics_per_node=8)
        if "40GB" in gpu:
            found = replace(found, gpu=_A100_40GB)
    if num_gpus <= found.gpus_per_node:
        return replace(hardware.DGX_H100 if gpu.startswith("H100") else hardware.DGX_A100, gpu=found.gpu)
    return found.with_nodes(-(-num_gpus // found.gpus_per_node))


def _cluster(row: dict[str, str]) -> Cluster:
    return _cluster_of(row["gpu"], row["inter_node_gbps_per_node"], int(row["n_gpus"]))


def _num_micro_batches(row: dict[str, str]) -> int:
    return round(int(row["global_batch_seqs"]) / (int(row["dp"]) * int(row["microbatch"])))


def _num_layer_parameters(row: dict[str, str]) -> int:
    width = int(row["hidden"])
    return 4 * width * width + 2 * width * int(row["ffn"])


def _hardware_flops(row: dict[str, str]) -> float:
    """Operations of a step on all GPUs, with what is computed again; of a causal flash attention half."""
    length, width, num_layers = (int(row[name]) for name in ("seq", "hidden", "layers"))
    attention = 4 * length * width / (2 if row["flash_attn"] == "y" else 1)
    num_passes = 4 if row["recompute"] == "full" else 3
    layer = num_passes * (2 * _num_layer_parameters(row) + attention)
    layer += attention if row["recompute"] == "selective" else 0
    head = 0 if num_layers == 1 else 3 * 2 * int(row["vocab"]) * width
    return int(row["global_batch_seqs"]) * length * (num_layers * layer + head)


def steps(num_of_source: int | None = None) -> list[Step]:
    """The bench's rows that are not left out, or so many of each source."""
    by_source: dict[str, list[dict[str, str]]] = {}
    for row in rows():
        if row["part"] == "bench" and why_left_out(row) is None:
            by_source.setdefault(source_of(row), []).append(row)
    return [on_paper(row) for of_source in by_source.values() for row in of_source[:num_of_source]]


if __name__ == "__main__":
    found = steps()
    print(report(found, errors(found)))
