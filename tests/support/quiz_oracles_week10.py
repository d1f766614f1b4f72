"""The answers of week 10's templates by other ways: meshes of numbers, rings step by step, queues of micro-batches."""

from __future__ import annotations

import heapq
from fractions import Fraction
from typing import Any

import torch
from quiz_oracles import oracle


def _step_of(stages: int, num_batches: int) -> tuple[int, int]:
    """The end of a step of equal stages, in forward passes, and a stage's working time: forwards, then backwards."""
    free = [0] * stages
    for _ in range(num_batches):
        arrived = 0
        for stage in range(stages):
            free[stage] = arrived = max(free[stage], arrived) + 1
    free = [max(free)] * stages  # GPipe's turn; the last stage never waits
    for _ in range(num_batches):
        arrived = free[-1]
        for stage in reversed(range(stages)):
            free[stage] = arrived = max(free[stage], arrived if stage < stages - 1 else free[stage]) + 2
    return max(free), 3 * num_batches


def _done_by(seconds: Fraction, each: list[Fraction]) -> int:
    """The sequences that ranks with these seconds for each have done by this time."""
    return sum(int(seconds / one) for one in each)


def _throughput(each: list[Fraction], number: int) -> Fraction:
    """Sequences a second if a rank takes the next one as soon as it is free."""
    queue = [(one, one) for one in each]
    heapq.heapify(queue)
    last = Fraction(0)
    for _ in range(number):
        last, one = heapq.heappop(queue)
        heapq.heappush(queue, (last + one, one))
    return number / last


@oracle("w10-coordinates")
def _(pp: int, dp: int, tp: int, at_dp: int, at_tp: int) -> dict[str, Any]:
    ranks = torch.arange(pp * dp * tp).reshape(pp, dp, tp)
    rank = int(ranks[0, at_dp, at_tp])
    _, place, column = (int(found) for found in torch.nonzero(ranks == rank)[0])
    return {"place": place, "next": int(ranks[1, place, column])}


@oracle("w10-dp-bytes")
def _(billions: int, tp: int, pp: int, dp: int) -> float:
    """The ring of a gather and of a reduce-scatter, a chunk at a step."""
    chunk = Fraction(billions, tp * pp * dp)
    return float(sum((2 + 4) * chunk for _ in range(dp - 1)))


@oracle("w10-enough-work")
def _(each: int, waits: int, percent: int) -> float:
    number = 1
    while Fraction(number * each, number * each + waits) < Fraction(percent, 100):
        number += 1
    return number


@oracle("w10-slow-gpu", sample=40)
def _(num_gpus: int, percent: int) -> dict[str, Any]:
    each = [Fraction(1)] * (num_gpus - 1) + [Fraction(100, percent)]
    rounds = 100
    equal = Fraction(num_gpus * rounds, 1) / max(rounds * one for one in each)
    period = Fraction(100)  # seconds, in which every rank does a whole number
    shared = _done_by(period, each) / period
    return {"equal": float(100 * equal / num_gpus), "shared": float(100 * shared / num_gpus)}


@oracle("w10-scale")
def _(num_batches: int, sequences: int, tokens: int, scales: bool) -> float:
    """Gradients of a weight that every token's loss is proportional to, accumulated by autograd."""
    right, found = (torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    of_a_batch = torch.ones(sequences * tokens, dtype=torch.float64)
    (right * torch.cat([of_a_batch] * num_batches).mean()).backward()
    for _ in range(num_batches):
        (found * of_a_batch).sum().backward()
    assert found.grad is not None and right.grad is not None
    return (found.grad / (num_batches if scales else 1) / right.grad).item()


@oracle("w10-fewest-stages")
def _(billions: int, bytes_each: int, tp: int, gpu_gb: int) -> float:
    stages = 1
    while Fraction(billions * bytes_each, tp * stages) > gpu_gb:
        stages *= 2
    return stages


@oracle("w10-mfu")
def _(tflops: int, peak: int) -> float:
    """A second of work: four passes, of which one is the second time."""
    passes = [Fraction(tflops, 4)] * 4
    return float(100 * sum(passes[:3]) / peak)


@oracle("w10-doubled", sample=30)
def _(stages: int, copies: int, half: int) -> float:
    queues = [len(range(0, 2 * half * copies, num)) for num in (copies, 2 * copies)]
    now, then = (_step_of(stages, num_batches)[0] for num_batches in queues)
    return now / then


@oracle("exam-combined-plan", sample=30)
def _(billions: int, tp: int, stages: int, copies: int, num_batches: int) -> dict[str, Any]:
    ranks = torch.arange(tp * stages * copies).reshape(copies, stages, tp)
    queue = len(range(0, copies * num_batches, len(ranks)))
    end, busy = _step_of(stages, queue)
    held = Fraction(16 * billions, ranks[0].numel())
    return {"m": queue, "idle": 100 * (1 - busy / end), "states": float(held)}


@oracle("exam-mixed-cluster", sample=20)
def _(num_old: int, num_new: int, tenths: int) -> float:
    each = [Fraction(1)] * num_old + [Fraction(10, tenths)] * num_new
    number = (num_old * 10 + num_new * tenths) * 2  # so many are done in 20 s, with nothing left over
    equal = len(each) / max(each)
    return float(_throughput(each, number) / equal)


@oracle("exam-accumulate-enough")
def _(alone: int, slower: int, percent: int) -> float:
    waits = Fraction(alone * slower, 100)
    number = 1
    while Fraction(number * alone) / (number * alone + waits) < Fraction(percent, 100):
        number += 1
    return number
