"""Lab 3's reference DataParallel against torch's DDP: the same gradients, and steps as fast, on real ranks."""

from __future__ import annotations

import contextlib
import statistics
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from figures import Figure, scaled
from repository import ROOT
from torch import nn

import worldsize as ws
from autograder.authoring.known_answers import solution_cells

LAB = ROOT / "solutions" / "lab03" / "lab03.py"
_WIDTH, _NUM_LAYERS, _NUM_ROWS, _CAP_MIB = 512, 6, 256, 2
_BUCKET_BYTES = 2_200_000  # two layers: DDP closes a bucket at its cap or above, the lab's never pass theirs
_NUM_TIMES, _NUM_SKIPPED = 25, 4  # the first steps open connections, and DDP cuts its buckets


def overlapping(scale: float) -> Iterator[Figure]:
    """Steps a second and gradients of the reference class, beside torch's DDP, one after the other in the same run."""
    num_times = scaled(_NUM_TIMES, scale)
    found = ws.run(_beside_torch, reference().DataParallel, num_times, world_size=2, backend="gloo", echo=False).values
    difference = max(one["difference"] for one in found)
    yield Figure(
        "DataParallel's gradients against DDP's", difference, "", "under 1e-6", difference < 1e-6, "largest difference"
    )
    ours_s, theirs_s = (statistics.median(one[name] for one in found) for name in ("ours_s", "theirs_s"))
    how = f"Gloo, 2 ranks, median of {num_times} steps each, in turns"
    yield Figure("a step with DataParallel", 1e3 * ours_s, "ms", "", None, how)
    yield Figure("a step with torch's DDP", 1e3 * theirs_s, "ms", "", None, how)
    ratio = statistics.median(one["ratio"] for one in found)
    yield Figure(
        "throughput over torch's DDP", ratio, "times", "at least 0.95", ratio >= 0.95, f"{how}, ratio of pairs"
    )


def reference() -> Any:
    """The functions and the class of lab 3's solution."""
    module = types.ModuleType("reference")
    module.__dict__.update(torch=torch, dist=dist, nn=nn, contextmanager=contextlib.contextmanager)
    for name in ("broadcast_state", "average_flat", "make_buckets", "DataParallel"):
        exec(solution_cells(LAB)[name], module.__dict__)
    return module


def _beside_torch(data_parallel: Any, num_times: int) -> dict[str, float]:
    torch.set_num_threads(1)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        layers = [layer for _ in range(_NUM_LAYERS) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
        models.append(nn.Sequential(*layers))
    ours = data_parallel(models[0], _BUCKET_BYTES)
    theirs = nn.parallel.DistributedDataParallel(models[1], bucket_cap_mb=_CAP_MIB)
    inputs = torch.randn(_NUM_ROWS, _WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    ours_s, theirs_s = [], []
    for place in range(_NUM_SKIPPED + num_times):
        pairs = [(ours, ours_s), (theirs, theirs_s)]
        for parallel, times_s in pairs if place % 2 else reversed(pairs):
            dist.barrier()
            start_s = time.perf_counter()
            parallel(inputs).square().mean().backward()
            if parallel is ours:
                ours.finish()
            dist.barrier()
            times_s.append(time.perf_counter() - start_s)
        gradients = zip(models[0].parameters(), models[1].parameters(), strict=True)
        difference = max((mine.grad - other.grad).abs().max().item() for mine, other in gradients)
        for model in models:
            model.zero_grad()
    ours_s, theirs_s = ours_s[_NUM_SKIPPED:], theirs_s[_NUM_SKIPPED:]
    return {
        "difference": difference,
        "ours_s": statistics.median(ours_s),
        "theirs_s": statistics.median(theirs_s),
        "ratio": statistics.median(other / mine for mine, other in zip(ours_s, theirs_s, strict=True)),
    }
