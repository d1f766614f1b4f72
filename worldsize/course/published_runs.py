"""Training steps that others have published, to compare a model of a step's time with."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CSV = Path(__file__).parents[1] / "data" / "published_runs.csv"  # its source is named in the same folder


@dataclass(frozen=True)
class PublishedRun:
    """A published configuration and the seconds of its training step.

    `is_step_derived` means that the source gives a different figure, such as FLOP/s, from which the seconds follow.
    `recompute` is "none", "selective" or "full"; `num_chunks` counts a rank's virtual stages.
    """

    name: str
    source: str
    model: str
    num_layers: int
    width: int
    num_heads: int
    hidden_width: int
    vocab_size: int
    length: int
    global_batch: int
    micro_batch: int
    gpu: str
    num_gpus: int
    tp: int
    pp: int
    dp: int
    num_chunks: int
    recompute: str
    is_sequence_split: bool
    zero_stage: int
    precision: str
    has_flash: bool
    step_s: float
    is_step_derived: bool
    notes: str


@cache
def rows() -> tuple[PublishedRun, ...]:
    """Read the course's published runs for lessons, without those kept for judging and for the engine's own bench."""
    with _CSV.open(newline="", encoding="utf-8") as file:
        return tuple(_run(row) for row in csv.DictReader(file))


def _run(row: dict[str, str]) -> PublishedRun:
    return PublishedRun(
        name=row["id"],
        source=f"{row['source']}: {row['source_ref']}",
        model=row["model"],
        num_layers=int(row["layers"]),
        width=int(row["hidden"]),
        num_heads=int(row["heads"]),
        hidden_width=int(row["ffn"]),
        vocab_size=int(row["vocab"]),
        length=int(row["seq"]),
        global_batch=int(row["global_batch_seqs"]),
        micro_batch=int(row["microbatch"]),
        gpu=row["gpu"],
        num_gpus=int(row["n_gpus"]),
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        dp=int(row["dp"]),
        num_chunks=int(row["vpp"]),
        recompute=row["recompute"],
        is_sequence_split=row["seq_parallel"] == "y",
        zero_stage=int(row["zero_stage"]),
        precision=row["precision"],
        has_flash=row["flash_attn"] == "y",
        step_s=float(row["iter_time_s"] or row["iter_time_s_derived"]),
        is_step_derived=not row["iter_time_s"],
        notes=row["notes"],
    )
