"""The answers of week 9's templates by other ways: schedules played, gradients accumulated, tensors without data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from quiz_oracles import oracle
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

Work: TypeAlias = tuple[str, int, int]  # "F" or "B", stage, micro-batch


@lru_cache
def _played(
    stage_s: tuple[int, ...], num_batches: int, limits: tuple[int, ...]
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The end and each stage's working time, in thirds of a second, and the most that it holds.

    A stage does forwards as long as it holds fewer micro-batches than its limit, and otherwise a backward.
    """
    num_stages = len(stage_s)
    ends: dict[Work, int] = {}
    free, busy, begun, back, held = ([0] * num_stages for _ in range(5))
    while min(back) < num_batches:
        ready: list[tuple[int, int, Work]] = []
        for stage in range(num_stages):
            forward, backward = ("F", stage, begun[stage]), ("B", stage, back[stage])
            fed = 0 if stage == 0 else ends.get(("F", stage - 1, begun[stage]))
            returned = ends.get(("B", stage + 1, back[stage]) if stage + 1 < num_stages else ("F", stage, back[stage]))
            may = begun[stage] < num_batches and begun[stage] - back[stage] < limits[stage]
            if may and fed is not None:
                ready.append((max(free[stage], fed), stage, forward))
            elif not may and returned is not None and begun[stage] > back[stage]:
                ready.append((max(free[stage], returned), stage, backward))
        start, stage, work = min(ready)
        takes = stage_s[stage] * (1 if work[0] == "F" else 2)
        ends[work] = free[stage] = start + takes
        busy[stage] += takes
        begun[stage] += work[0] == "F"
        back[stage] += work[0] == "B"
        held[stage] = max(held[stage], begun[stage] - back[stage])
    return max(free), tuple(busy), tuple(held)


def _gpipe(stage_s: Sequence[int], num_batches: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return _played(tuple(stage_s), num_batches, (num_batches,) * len(stage_s))


def _alternating(num_stages: int, num_batches: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return _played((3,) * num_stages, num_batches, tuple(range(num_stages, 0, -1)))


def _idle_percent(num_stages: int, num_batches: int) -> float:
    end, busy, _ = _alternating(num_stages, num_batches)
    return 100 * (1 - sum(busy) / end / num_stages)


@lru_cache
def _interleaved_idle_percent(num_ranks: int, num_chunks: int, num_batches: int) -> float:
    """torch's own table, played: a chunk's forward takes one unit of time, its backward two."""
    rows = [
        [
            (found[2], int(found[1]), int(found[3]))
            for one in row
            if (found := re.fullmatch(r"(\d+)([FB])(\d+)", str(one)))
        ]
        for row in get_schedule_ops("Interleaved1F1B", num_ranks, num_batches, num_chunks)
    ]
    last, ends, free = num_ranks * num_chunks - 1, {}, [0] * num_ranks
    for _ in range(sum(map(len, rows))):
        for rank, row in enumerate(rows):
            while row:
                kind, stage, number = row[0]
                before = (kind, stage - 1, number) if kind == "F" else (kind, stage + 1, number)
                if (kind, stage) == ("B", last):
                    before = ("F", stage, number)
                if (kind, stage) != ("F", 0) and before not in ends:
                    break
                free[rank] = ends[row.pop(0)] = max(free[rank], ends.get(before, 0)) + (1 if kind == "F" else 2)
    assert not any(rows)
    return 100 * (1 - 3 * num_chunks * num_batches / max(free))


@oracle("w09-idle", sample=40)
def _(stages: int, num_batches: int) -> float:
    return _idle_percent(stages, num_batches)


@oracle("w09-speedup", sample=40)
def _(stages: int, num_batches: int) -> float:
    end, busy, _ = _gpipe([3] * stages, num_batches)
    return sum(busy) / end


@oracle("w09-held", sample=40)
def _(stages: int, num_batches: int, place: int) -> dict[str, Any]:
    return {
        "gpipe": _gpipe([3] * stages, num_batches)[2][place],
        "alternating": _alternating(stages, num_batches)[2][place],
    }


@oracle("w09-interleaved", sample=30)
def _(ranks: int, chunks: int, rounds: int) -> dict[str, Any]:
    places = [stage % ranks for stage in range(ranks * chunks)]
    crossed = sum(one != other for one, other in pairwise(places))
    return {"idle": _interleaved_idle_percent(ranks, chunks, ranks * rounds), "boundaries": crossed}


@oracle("w09-accumulation")
def _(num_batches: int, more: int, tenths: int) -> float:
    """Gradients that autograd accumulates, with the division after each call."""
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(1 + more):
        for _ in range(num_batches):
            (weight * tenths / 10).backward()
        assert weight.grad is not None
        weight.grad.div_(num_batches)
    assert weight.grad is not None
    return weight.grad.item()


@oracle("w09-stage-memory", sample=40)
def _(stages: int, per_stage: int, num_batches: int, mib: int, place: int) -> float:
    held = _alternating(stages, num_batches)[2][place]
    return sum(mib for _ in range(held) for _ in range(per_stage)) / 1000


@oracle("w09-uneven", sample=60)
def _(first: int, second: int, third: int, fourth: int, num_batches: int) -> float:
    return _gpipe([first, second, third, fourth], num_batches)[0] / 3


@oracle("w09-message")
def _(num_batches: int, tokens: int, width: int) -> float:
    """Every message of a middle stage, as a tensor without data."""
    sent = Counter[str]()
    for _ in range(num_batches):
        outputs = torch.empty(1, tokens, width, dtype=torch.bfloat16, device="meta", requires_grad=True)
        sent["on"] += outputs.nbytes
        sent["back"] += torch.empty_like(outputs).nbytes
    return sent.total() / 1e6


@oracle("w09-layout", sample=30)
def _(stages: int, chunks: int, copies: int, rounds: int) -> float:
    if chunks == 1:
        return _idle_percent(stages, stages * rounds)
    return _interleaved_idle_percent(stages, chunks, stages * rounds)


@oracle("exam-pipeline-plan", sample=40)
def _(stages: int, per_stage: int, num_batches: int, size_mb: int) -> dict[str, Any]:
    end, busy, held = _alternating(stages, num_batches)
    sizes = [one * per_stage * size_mb / 1000 for one in held]
    return {"speed": sum(busy) / end, "last": sizes[-1], "first": sizes[0]}


@oracle("exam-pipeline-slowest", sample=30)
def _(stages: int, num_batches: int, percent: int) -> float:
    """One stage made slower and slower at the cost of the others, until the pipeline has that speed."""
    even = stages * num_batches / (num_batches + stages - 1)
    speed = round(even * percent) / 100
    low, high = 1.0, float(stages)
    for _ in range(60):
        slow = (low + high) / 2
        others = (stages - slow) / (stages - 1)
        free = [0.0] * stages
        for _ in range(num_batches):
            arrived = 0.0
            for stage in range(stages):
                free[stage] = arrived = max(free[stage], arrived) + (slow if stage == 0 else others)
        low, high = (slow, high) if num_batches * stages / max(free) > speed else (low, slow)
    return low


@oracle("exam-pipeline-more-gpus", sample=30)
def _(stages: int, copies: int, half: int) -> dict[str, Any]:
    queues = [Counter(sequence % num for sequence in range(2 * half * copies))[0] for num in (copies, 2 * copies)]
    now, then = (_idle_percent(stages, num_batches) for num_batches in queues)
    return {"now": now, "then": then}
