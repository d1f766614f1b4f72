"""The answers of week 4's templates, each computed by another way than the template's own formula."""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from quiz_oracles import oracle

import worldsize as ws
from worldsize import emulate

# --- workers that push, event by event -------------------------------------------------------------------------------


def pushes(steps_us: list[int], until_us: int) -> Iterator[tuple[int, int, int]]:
    """When, by whom, and how many updates late: workers that wait for nobody and do not begin at the same time."""
    ends = [(worker + 1, worker) for worker in range(len(steps_us))]
    heapq.heapify(ends)
    version, pulled = 0, [0] * len(steps_us)
    while ends[0][0] <= until_us:
        now_us, worker = heapq.heappop(ends)
        yield now_us, worker, version - pulled[worker]
        version += 1
        pulled[worker] = version
        heapq.heappush(ends, (now_us + steps_us[worker], worker))


def _paces_us(num_workers: int, fast_ms: float, factor: float) -> list[int]:
    """Microseconds of a step of each worker; the last one is the slow one."""
    return [round(1000 * fast_ms)] * (num_workers - 1) + [round(1000 * fast_ms * factor)]


def _rate_in_turn(paces: list[int]) -> Fraction:
    """Gradients for each unit of time, of a server that takes the workers in a fixed order, in its later rounds."""
    now, came, ready = 0, 0, list(paces)
    num_rounds, first_rounds = 20, 5
    for done in range(num_rounds):
        if done == first_rounds:
            since, came = now, 0
        for worker, pace in enumerate(paces):
            now = max(now, ready[worker])
            ready[worker] = now + pace
            came += 1
    return Fraction(came, now - since)


def _rate_at_will(paces: list[int]) -> Fraction:
    """The same of a server that serves workers as they come, over a time after which all are where they were."""
    period = math.lcm(*paces)
    return Fraction(sum(at > period for at, _, _ in pushes(paces, 2 * period)), period)


_FACTORS = (1, 2, 2.5, 3, 4, 5, 8)


def _steps_on_rank(step_s: float) -> list[float]:
    """Virtual seconds of a synchronous step, for each factor by which the last rank is slower."""
    is_last, took_s = dist.get_rank() == dist.get_world_size() - 1, []
    for factor in _FACTORS:
        start_s = emulate.elapsed()
        emulate.spend(step_s * (factor if is_last else 1))
        dist.all_reduce(torch.zeros(1))
        took_s.append(emulate.elapsed() - start_s)
    return took_s


@lru_cache
def _emulated_s(num_workers: int) -> dict[float, float]:
    """The same, as rank 0 sees it; steps are so long that messages take next to no time."""
    emulated = {"world_size": num_workers, "cluster": "dgx-h100", "compute": "none", "echo": False}
    return dict(zip(_FACTORS, ws.run(_steps_on_rank, 1e6, **emulated).values[0], strict=True))


@oracle("w04-sync-step", sample=60)
def _(num_workers: int, fast_ms: int, factor: float) -> dict[str, float]:
    """Gradients that are counted: of a loop in which each waits for the last, and of workers at will."""
    paces_us = _paces_us(num_workers, fast_ms, factor)
    full = _rate_at_will(paces_us[:1] * num_workers)
    return {"sync": float(100 * _rate_in_turn(paces_us) / full), "free": float(100 * _rate_at_will(paces_us) / full)}


@oracle("w04-sync-step", sample=20, can=lambda variant: variant.parameters["num_workers"] == 4)
def _(num_workers: int, fast_ms: int, factor: float) -> dict[str, float]:
    """Synchronous: ranks on an emulated cluster. Without a bound: pushes that are counted."""
    paces_us = _paces_us(num_workers, fast_ms, factor)
    free = _rate_at_will(paces_us) / _rate_at_will(paces_us[:1] * num_workers)
    return {"sync": 100 * _emulated_s(num_workers)[1] / _emulated_s(num_workers)[factor], "free": float(100 * free)}


@oracle("w04-mean-staleness", sample=60)
def _(num_workers: int, fast_ms: int, factor: float) -> dict[str, float]:
    """Versions that the server counts, over a time in which all come back to where they were."""
    paces_us = _paces_us(num_workers, fast_ms, factor)
    period_us = math.lcm(*paces_us)
    late = [(worker, tau) for at, worker, tau in pushes(paces_us, 3 * period_us) if at > 2 * period_us]
    slow = [tau for worker, tau in late if worker == num_workers - 1]
    return {"slow": sum(slow) / len(slow), "mean": sum(tau for _, tau in late) / len(late)}


@lru_cache
def _edge(delay: int) -> float:
    """Where a late gradient's x neither grows nor shrinks: a root of z^(delay+1) - z^delay + rate, as large as 1."""
    low, high = 0.0, 2.5
    for _ in range(60):
        companion = torch.diag(torch.ones(delay, dtype=torch.float64), -1)
        companion[0, 0], middle = 1.0, (low + high) / 2
        companion[0, delay] -= middle
        low, high = (low, middle) if torch.linalg.eigvals(companion).abs().max() > 1 else (middle, high)
    return low


@oracle("w04-stable-rate")
def _(num_workers: int, curvature: float) -> float:
    """The delay is counted, and the edge found by the eigenvalues of the step."""
    (delay,) = {tau for at, _, tau in pushes([100] * num_workers, 1000) if at > 500}
    return _edge(delay) / curvature


def _starts_and_ends(paces: list[int], bound: int, until: int) -> list[list[tuple[int, int]]]:
    """When each worker begins and ends its steps; event by event, asking before each step who is how far."""
    done: list[list[tuple[int, int]]] = [[] for _ in paces]
    busy: dict[int, tuple[int, int]] = {}
    now = 0
    while now <= until:
        for worker, (_, end) in list(busy.items()):
            if end == now:
                done[worker].append(busy.pop(worker))
        slowest = min(map(len, done))
        for worker, pace in enumerate(paces):
            if worker not in busy and len(done[worker]) - slowest <= bound:
                busy[worker] = (now, now + pace)
        now = min(end for _, end in busy.values())
    return done


@oracle("w04-bound-and-slow-node", sample=60)
def _(num_workers: int, fast_ms: int, factor: int, bound: int) -> dict[str, Any]:
    def rate(ahead: int) -> tuple[int, float]:
        steps = _starts_and_ends([fast_ms] * 2 + [fast_ms * factor], ahead, 100 * factor * fast_ms)[0]
        free = next(
            number for number, (one, next_one) in enumerate(itertools.pairwise(steps), 1) if one[1] < next_one[0]
        )
        return free, 8000 / (steps[-1][1] - steps[-9][1])

    assert num_workers > 2  # fast ones are all alike: two of them are played
    (free, now), (_, later) = rate(bound), rate(2 * bound)
    return {"free": free, "rate": now, "larger": "stays as it is" if math.isclose(now, later) else "?"}


def _number(text: str, before: str, unit: str) -> Fraction:
    (found,) = re.findall(rf"{before}\s+([\d.,]+)\s+{re.escape(unit)}", text)
    return Fraction(found.replace(",", ""))


@oracle("w04-server-link", sample=60)
def _(text: str) -> int:
    """Workers that queue for a link, more and more of them, until it is never idle; with the text's numbers alone."""
    byte_ms = 8 / (_number(text, "has a link of", "Gb/s") * 10**6)
    message_ms = _number(text, "after the other:", "MB of gradient") * 10**6 * byte_ms
    compute_ms = _number(text, "computes for", "ms")
    for num_workers in range(1, 100):
        comes_ms, link_free_ms, idle_ms = [compute_ms] * num_workers, Fraction(0), Fraction(0)
        for exchange in range(4 * num_workers):
            first_ms = heapq.heappop(comes_ms)
            idle_ms += max(Fraction(0), first_ms - link_free_ms) if exchange >= 2 * num_workers else 0
            link_free_ms = max(link_free_ms, first_ms) + 2 * message_ms
            heapq.heappush(comes_ms, link_free_ms + compute_ms)
        if not idle_ms:
            return num_workers
    raise AssertionError("the link is never full")


# --- optimizers -----------------------------------------------------------------------------------------------------


def _step(weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> torch.Tensor:
    """The weights after one step of torch's SGD."""
    parameter = torch.nn.Parameter(weights.clone())
    parameter.grad = gradient
    torch.optim.SGD([parameter], lr=rate).step()
    return parameter.detach()


def _mean_gradient(weights: torch.Tensor, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    parameter = weights.clone().requires_grad_()
    torch.nn.functional.mse_loss(inputs @ parameter, wanted).backward()
    assert parameter.grad is not None
    return parameter.grad


@oracle("w04-sync-equivalence")
def _(num_workers: int, batch: int, rate: float, how: str) -> str:
    """The one process, of three, that gets to the same weights."""
    chance = torch.Generator().manual_seed(batch)
    inputs = torch.randn(num_workers * batch, 5, generator=chance, dtype=torch.float64)
    wanted, start = inputs.sum(dim=1).sin(), torch.zeros(5, dtype=torch.float64)
    parts = zip(inputs.split(batch), wanted.split(batch), strict=True)
    gradients = torch.stack([_mean_gradient(start, *part) for part in parts])
    together = _step(start, getattr(gradients, how)(dim=0), rate)
    same = [
        (size, one_rate)
        for size, one_rate in itertools.product((batch, num_workers * batch), (rate, num_workers * rate))
        if torch.allclose(_step(start, _mean_gradient(start, inputs[:size], wanted[:size]), one_rate), together)
    ]
    ((size, one_rate),) = same
    return f"Batch {size} with a learning rate of {one_rate:.6g}"


@lru_cache
def _mean_until(needed: int, total: int) -> float:
    """The mean time until this many of them are done, exponential with mean 1: the integral of not being done yet."""
    times = torch.linspace(0, 60, 60_001, dtype=torch.float64)
    is_done = -torch.expm1(-times)
    fewer = torch.zeros_like(times)
    for done in range(needed):
        fewer += math.comb(total, done) * is_done**done * (1 - is_done) ** (total - done)
    simpson = torch.ones_like(times)
    simpson[1:-1:2], simpson[2:-1:2] = 4, 2
    return float((simpson * fewer).sum() * 60 / 60_000 / 3)


@oracle("w04-backup-workers")
def _(total: int, num_backups: int, mean_ms: int) -> dict[str, Any]:
    return {"time": mean_ms * _mean_until(total - num_backups, total), "late": "dropped"}


@oracle("w04-linear-scaling")
def _(text: str, few: int, rate: float) -> dict[str, Any]:
    """An epoch that is dealt out; and the rate with which one step goes as far as the small ones on its samples."""
    many, num_samples = int(_number(text, "moved to", "GPUs")), int(_number(text, "epoch is", "samples"))
    batch = int(_number(text, "GPUs with", "samples"))
    steps = list(range(0, num_samples, sum(batch for _ in range(many))))
    small_steps = range(0, steps[1], sum(batch for _ in range(few)))
    weights, gradient = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for _ in small_steps:  # the gradient does not change: what the rule assumes
        weights = _step(weights, gradient, rate)
    return {"whole": steps[1], "steps": len(steps), "rate": -weights.mean().item(), "growing": "warm-up"}


@oracle("w04-lars-ratio")
def _(weights_norm: float, gradient_norm: float, trust: float, decay: float) -> float:
    """By what the ratio is for: with the gradient along the weights, a step is the trusted share of the layer."""
    weights = torch.randn(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights *= weights_norm / weights.norm()
    parameter = torch.nn.Parameter(weights.clone())
    parameter.grad = weights * (gradient_norm / weights.norm())
    torch.optim.SGD([parameter], lr=1.0, weight_decay=decay).step()  # a step of ratio 1
    moved = (parameter.detach() - weights).norm() / weights.norm()
    return trust / moved.item()


@oracle("w04-in-name-only", sample=60)
def _(num_workers: int, fast_ms: int, factor: int) -> list[str]:
    paces_us = _paces_us(num_workers, fast_ms, factor)
    rates = {
        "Leave the loop as it is": _rate_in_turn(paces_us),
        "Keep the loop, and make the slow worker twice as fast": _rate_in_turn([*paces_us[:-1], paces_us[-1] // 2]),
        "Train with one of the fast workers alone": _rate_in_turn(paces_us[:1]),
        "Keep the loop, and send the slow worker home": _rate_in_turn(paces_us[:-1]),
        "Keep all workers, and receive from any source": _rate_at_will(paces_us),
    }
    return sorted(rates, key=rates.__getitem__)


@oracle("w04-warm-up")
def _(rate: float, factor: int, num_steps: int, fifths: int) -> float:
    """torch's own schedule, which is asked for one step after the other."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate * factor)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / factor, 1.0, num_steps)
    for _ in range(num_steps * fifths // 5):
        optimizer.step()
        schedule.step()
    (now,) = schedule.get_last_lr()
    return now
