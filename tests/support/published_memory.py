"""Published peaks of memory beside the same program's on paper: run as a script, it prints every row of tests/data.

torchtitan's rows are `large_programs` of two steps on the lines through 3 and 4 layers: the tensors' bytes, where the
source says what torch's allocator had reserved. Korthikanti's are the activations that a layer of `gpt_layers` keeps of
a micro-batch, times the layers and, on a pipeline's first stage, the micro-batches that it holds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import cloudpickle
import gpt_layers
import large_programs
from gpt_layers import Sizes
from repository import ROOT

import worldsize as ws
from worldsize.units import GIB

CSV = ROOT / "tests/data/published_memory.csv"
_OF_22B = Sizes(
    width=6144, num_heads=64, num_kv_heads=64, hidden_width=24576, vocab_size=51200, length=2048, micro_batch=4, tp=8
)
_OF_175B = Sizes(
    width=12288, num_heads=96, num_kv_heads=96, hidden_width=49152, vocab_size=51200, length=2048, micro_batch=1, tp=8
)
_RECOMPUTES = {
    "none": ("none", False),
    "SP": ("none", True),
    "selective": ("selective", False),
    "full": ("full", False),
}


@dataclass(frozen=True)
class Peak:
    """A published peak and the same on paper."""

    name: str
    published_bytes: float
    paper_bytes: float

    @property
    def error_fraction(self) -> float:
        return self.paper_bytes / self.published_bytes - 1


def compared(is_smallest: bool = False) -> Iterator[Peak]:
    """Every row, or one."""
    with CSV.open(newline="") as file:
        rows = {row["id"]: float(row["value"]) for row in csv.DictReader(file)}
    if not is_smallest:
        for name, (program, num_layers, *args, num_gpus) in {
            "run_tt24_8b_8_eager": (large_programs.fully_sharded, 32, "llama-3-8b", 2, "operators", 2, 8),
            "run_tt24_8b_128_eager": (large_programs.fully_sharded, 32, "llama-3-8b", 2, "operators", 2, 128),
            "run_tt24_8b_cp1": (large_programs.fully_sharded, 32, "llama-3-8b", 2, "full", 1, 32_768, 8),
            "run_tt24_70b_2d": (large_programs.split_and_sharded, 80, "llama-3-70b", 8, 2, 16, 256),
        }.items():
            yield Peak(name, rows[name] * GIB, _peak_bytes(program, num_layers, tuple(args), num_gpus))
    none_bytes = rows["kor_f1_GPT-22B_none"] * GIB
    for kind, (recompute, is_split) in _RECOMPUTES.items():
        name = "kor_f1_GPT-22B_none" if kind == "none" else f"kor_f7_GPT-22B_{kind}"
        published = none_bytes if kind == "none" else rows[name] / 100 * none_bytes
        yield Peak(name, published, _activation_bytes(_OF_22B, recompute, is_split, 48))
        if is_smallest:
            return
    yield Peak(
        "kor_f1_GPT-22B_selsp", rows["kor_f1_GPT-22B_selsp"] * GIB, _activation_bytes(_OF_22B, "selective", True, 48)
    )
    in_flight = 1 + (8 - 1) / (8 * 3)  # 8 stages of 3 chunks: section 4.2.3
    for name, recompute, is_split in [
        ("kor_f1_GPT-175B_none", "none", False),
        ("kor_f1_GPT-175B_selsp", "selective", True),
    ]:
        held = in_flight * _activation_bytes(_OF_175B, recompute, is_split, 96)
        yield Peak(name, rows[name] * GIB, held)


def report(peaks: list[Peak]) -> str:
    lines = [f"{'row':26} {'published':>12} {'on paper':>12} {'error':>7}"]
    lines += [
        f"{one.name:26} {one.published_bytes / GIB:8.2f} GiB {one.paper_bytes / GIB:8.2f} GiB "
        f"{100 * one.error_fraction:+6.1f}%"
        for one in peaks
    ]
    return "\n".join(lines)


@cache
def _peak_bytes(program, num_layers, args, num_gpus) -> float:
    cloudpickle.register_pickle_by_value(large_programs)
    cluster = "dgx-h100" if num_gpus == 8 else f"h100-ndr-x{num_gpus // 8}"
    return ws.paper(
        program, num_layers, *args, world_size=num_gpus, cluster=cluster, depths=(3, 4), echo=False
    ).peak_bytes


@cache
def _activation_bytes(sizes: Sizes, recompute: str, is_split: bool, num_layers: int) -> float:
    cloudpickle.register_pickle_by_value(gpt_layers)

    sizes = replace(sizes, recompute=recompute, is_sequence_split=is_split, has_ends=False)
    one, two = (
        max(
            ws.paper(gpt_layers.micro_batch, depth, sizes, world_size=8, cluster="dgx-a100", echo=False)
            .memory[0]
            .sizes["activations"]
        )
        for depth in (1, 2)
    )
    return num_layers * (two - one)  # what each layer keeps, without what one is computing


if __name__ == "__main__":
    print(report(list(compared())))
