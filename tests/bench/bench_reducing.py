"""Lab 2's reference all-reduce against torch's own, and against the least that ranks can send."""

from __future__ import annotations

import statistics
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from figures import Figure, median_s, scaled
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import solution_cells

LAB = ROOT / "solutions" / "lab02" / "lab02.py"
_NUM_RANKS, _NUM_ELEMENTS = 4, 1_000_002  # four ranks cannot share that equally
_NUM_TIMES = 9


def reducing(scale: float) -> Iterator[Figure]:
    """The bytes and the time of the reference ring, beside torch's all-reduce of the same tensor in the same run."""
    ring = list(range(_NUM_RANKS))
    all_reduce = reference().ring_all_reduce
    run = ws.run(
        all_reduce,
        torch.ones(_NUM_ELEMENTS),
        ring,
        world_size=_NUM_RANKS,
        cluster="dgx-h100",
        allow={"send", "recv"},
        echo=False,
    )
    least_bytes = 2 * (_NUM_RANKS - 1) * -(-_NUM_ELEMENTS // _NUM_RANKS) * 4
    excess_bytes = max(run.timeline.bytes_sent(rank) for rank in ring) - least_bytes
    yield Figure(
        "ring's bytes above bound and padding", excess_bytes, "B", "at most 0", excess_bytes <= 0, "4 ranks, 4 MB"
    )
    num_times = scaled(_NUM_TIMES, scale)
    beside = ws.run(
        _beside_torch, all_reduce, ring, num_times, world_size=_NUM_RANKS, backend="gloo", echo=False
    ).values
    difference = max(found["difference"] for found in beside)
    yield Figure("ring's sum against torch's", difference, "", "under 1e-5", difference < 1e-5, "largest difference")
    ratio = statistics.median(found["ratio"] for found in beside)
    yield Figure("ring's time over torch's", ratio, "times", "", None, f"Gloo, median of {num_times}, same run")


def reference() -> Any:
    """The functions of lab 2's solution."""
    module = types.ModuleType("reference")
    exec("import torch\nimport torch.distributed as dist", module.__dict__)
    for source in solution_cells(LAB).values():
        if source.startswith("def "):  # one answer is in words
            exec(source, module.__dict__)
    return module


def _beside_torch(all_reduce: Any, ring: list[int], num_times: int) -> dict[str, float]:
    tensor = torch.rand(_NUM_ELEMENTS, generator=torch.Generator().manual_seed(dist.get_rank()))
    ours, theirs = tensor.clone(), tensor.clone()
    all_reduce(ours, ring)
    dist.all_reduce(theirs)
    ours_s = median_s(lambda: all_reduce(tensor, ring), num_times)
    theirs_s = median_s(lambda: dist.all_reduce(tensor), num_times)
    return {"difference": (ours - theirs).abs().max().item(), "ratio": ours_s / theirs_s}
