"""Lab 9's 1F1B beside torch's `Schedule1F1B`: the step on emulated ranks, and the throughput of two real Gloo ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from figures import Figure, scaled
from pipeline_by_hand import solution_source, stage_of, stepping, virtual_step_s

import worldsize as ws

_MOST, _LEAST = 1.01, 0.95  # of torch's emulated step, and of its throughput on real ranks
_NUM_MICRO_BATCHES = 8


def pipelining(scale: float) -> Iterator[Figure]:
    """A step of the small transformer in two stages, as lab 9's solution and as torch run it."""
    source = solution_source()
    for cluster in ("dgx-h100", "pcie-box"):
        length = scaled(256, scale, least=16)
        options = {"world_size": 2, "cluster": cluster, "echo": False, "timeout_s": 300}
        own_s, theirs_s = (
            max(ws.run(virtual_step_s, how, source, _NUM_MICRO_BATCHES, length, **options).values)
            for how in ("by hand", "torch")
        )
        ratio, how = own_s / theirs_s, f"{_NUM_MICRO_BATCHES} micro-batches of {length} tokens, emulated"
        yield Figure(f"lab 9's 1F1B over torch's, {cluster}", ratio, "x", "at most 1.01", ratio <= _MOST, how)
    num_pairs = scaled(20, scale, least=3)
    run = ws.run(_pairs, source, num_pairs, world_size=2, backend="gloo", echo=False, timeout_s=300)
    ratio = statistics.median(theirs_s / own_s for theirs_s, own_s in run.values[0])
    how = f"median of {num_pairs} interleaved pairs of steps, two real Gloo ranks, float32"
    yield Figure("lab 9's 1F1B, throughput of torch's", ratio, "x", "at least 0.95", ratio >= _LEAST, how)


def _pairs(source: str, num_pairs: int) -> list[tuple[float, float]]:
    """Seconds of a step by torch and of one by hand, in turn, after a first one each."""
    torch.set_num_threads(1)
    rank, num_ranks, pairs = dist.get_rank(), dist.get_world_size(), []
    steps = [stepping(how, source, _NUM_MICRO_BATCHES, 128, stage_of(rank, num_ranks)) for how in ("torch", "by hand")]
    for number in range(num_pairs + 1):
        taken_s = []
        for step in steps:
            dist.barrier()
            start_s = time.perf_counter()
            step()
            dist.barrier()
            taken_s.append(time.perf_counter() - start_s)
        if number:
            pairs.append((taken_s[0], taken_s[1]))
    return pairs
