"""The answers of week 5's templates by other ways: tensors' bytes, draws enumerated, schedules and steps played."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import torch
from quiz_oracles import oracle, ring, ring_all_gather, sent_by

import worldsize as ws


def _megabytes(num: int, dtype: torch.dtype) -> float:
    return torch.empty(num, dtype=dtype, device="meta").nbytes / 1e6


@oracle("w05-gather-grows", sample=60)
def _(num_ranks: int, millions: int, percent: float) -> list[str]:
    """The bytes of what is packed, and messages of rings."""
    num = millions * 10**6
    num_kept = round(num * percent / 100)
    reduced, gathered = sent_by(0, ring(num_ranks)), sent_by(0, ring_all_gather(num_ranks))
    kept_mb = _megabytes(num_kept, torch.float32) + _megabytes(num_kept, torch.int32)
    sent_mb = {
        "float32, by an all-reduce": reduced * _megabytes(num, torch.float32),
        "float16, by an all-reduce": reduced * _megabytes(num, torch.float16),
        "int8, by an all-gather": gathered * _megabytes(num, torch.int8),
        "Signs, one bit each, by an all-gather": gathered * _megabytes(math.ceil(num / 8), torch.uint8),
        f"Each rank's largest {percent}%, as 4-byte values with 4-byte places, by an all-gather": gathered * kept_mb,
    }
    return sorted(sent_mb, key=sent_mb.__getitem__)


@oracle("w05-top-k-bytes")
def _(millions: int, percent: float, dtype: str, places: str) -> float:
    """The bytes of the two tensors that are sent."""
    num_kept = round(millions * 10**6 * percent / 100)
    return sum(_megabytes(num_kept, getattr(torch, kind)) for kind in (dtype, places))


@oracle("w05-error-feedback")
def _(hundredths: int, steps: int) -> dict[str, Any]:
    """Step by step, in exact numbers."""
    gradient, kept, sent, gradients = Fraction(hundredths, 100), Fraction(0), 0, Fraction(0)
    for _ in range(steps):
        gradients += gradient
        total = gradient + kept
        message = 1 if total >= 1 else 0
        sent, kept = sent + message, total - message
        assert gradients - sent == kept
    return {"sent": sent, "kept": float(kept), "rest": "exactly what is kept"}


@oracle("w05-bias-or-spread")
def _(length: float, every: int) -> dict[str, Any]:
    """All draws of a gradient with three entries, each as often as it comes."""
    gradient = length / 13 * torch.tensor([3.0, -4.0, 12.0], dtype=torch.float64)
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    chances = (masks / every + (1 - masks) * (1 - 1 / every)).prod(dim=1)
    assert math.isclose(chances.sum(), 1)

    def bias_and_spread(draws: torch.Tensor) -> tuple[float, float]:
        mean = chances @ draws
        spread = (chances @ (draws - mean).square().sum(dim=1)).sqrt()
        return (mean - gradient).norm().item(), spread.item()

    bias, _ = bias_and_spread(masks * gradient)
    none, spread = bias_and_spread(every * masks * gradient)
    assert none < 1e-9 * length
    # over many steps, the root of the mean square goes down with their number, and what all have in common stays
    left = [math.hypot(bias_of, spread_of / 1e6) for bias_of, spread_of in ((bias, 0.0), (0.0, spread))]
    which = {(False, True): "the second of the two, not the first"}[left[0] < bias / 2, left[1] < spread / 2]
    return {"bias": bias, "spread": spread, "which": which}


def _step(num_layers: int, forward_ms: float, backward_ms: float, wire_ms: float) -> ws.Timeline:
    """Forward, backward from the last layer, and a bucket after each, when the link is free."""
    events, now_s, free_s = [], 0.0, 0.0
    for layer in range(num_layers):
        events.append(ws.Event(0, "main", "forward", f"forward {layer}", now_s, now_s + forward_ms / 1e3))
        now_s = events[-1].end_s
    for layer in reversed(range(num_layers)):
        events.append(ws.Event(0, "main", "backward", f"backward {layer}", now_s, now_s + backward_ms / 1e3))
        now_s = events[-1].end_s
        start_s = max(now_s, free_s)
        events.append(ws.Event(0, "wire", "communication", "all_reduce", start_s, start_s + wire_ms / 1e3))
        free_s = events[-1].end_s
    return ws.Timeline.of_events(events)


@oracle("w05-when-it-pays", sample=500)
def _(num_layers: int, backward_ms: int, wire_ms: int, percent: int, work_ms: float) -> dict[str, Any]:
    plain = _step(num_layers, backward_ms / 2, backward_ms, wire_ms)
    compressed = _step(num_layers, backward_ms / 2, backward_ms + work_ms, wire_ms * percent / 100)
    return {
        "shown": 1e3 * plain.exposed_communication_s(0),
        "time": 1e3 * compressed.end_s,
        "verdict": "shorter" if compressed.end_s < plain.end_s else "longer",
    }


@oracle("w05-powersgd-bytes")
def _(rows: int, columns: int, rank: int) -> int:
    """The method's products on tensors without data."""
    matrix = torch.empty(rows, columns, device="meta")
    p = matrix @ torch.empty(columns, rank, device="meta")
    q = matrix.t() @ p
    assert (p @ q.t()).shape == matrix.shape
    return p.numel() + q.numel()


@oracle("w05-local-or-accumulated")
def _(num_ranks: int, millions: int, every: int, exchanges: int) -> dict[str, Any]:
    """Both trainings, batch by batch, with two numbers in place of ranks' weights."""
    sent_gb = {"accumulated": 0.0, "local": 0.0}
    updates, summed, copies = {"accumulated": 0, "local": 0}, 0, [0.0, 1.0]
    for batch in range(1, every * exchanges + 1):
        summed += 1
        copies, updates["local"] = [2 * copy + place for place, copy in enumerate(copies)], updates["local"] + 1
        if batch % every:
            continue
        assert summed == every and copies[0] != copies[1]  # they have drifted apart, and are averaged
        copies, summed, updates["accumulated"] = [0.0, 1.0], 0, updates["accumulated"] + 1
        for way in sent_gb:
            sent_gb[way] += sent_by(0, ring(num_ranks)) * _megabytes(millions * 10**6, torch.float32) / 1000
    assert sent_gb["local"] == sent_gb["accumulated"]
    return {**updates, "what": "the copies' parameters, to average them", "sent": sent_gb["local"]}


@oracle("w05-priority")
def _(first_ms: int, second_ms: int, third_ms: int, forward_ms: int) -> dict[str, Any]:
    """The link, message by message, and the layers, each as soon as it can."""

    def end_ms(order: list[int]) -> tuple[int, int]:
        wire_ms, now, arrived = {1: first_ms, 2: second_ms, 3: third_ms}, 0, {}
        for layer in order:
            now += wire_ms[layer]
            arrived[layer] = now
        ended = 0
        for layer in (1, 2, 3):
            ended = max(ended, arrived[layer]) + forward_ms
        return ended, now

    (late, all_late), (early, all_early) = end_ms([3, 2, 1]), end_ms([1, 2, 3])
    what = "as many bytes are sent and the weights become the same" if all_late == all_early else "?"
    return {"late": late, "early": early, "what": what}


@oracle("w05-float16-range")
def _(num_ranks: int, mantissa: float, when: str) -> str:
    """Added up by torch in float16, rank after rank."""
    gradient = torch.tensor(mantissa * (1000 if when == "after" else 1e-7), dtype=torch.float16)
    assert gradient.isfinite() and gradient > 0
    one = gradient / num_ranks if when == "before" else gradient
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(num_ranks):
        total = total + one
    return f"{(total / num_ranks if when == 'after' else total).item():g}"


@oracle("w05-int8-gather")
def _(num_ranks: int, millions: int) -> float:
    return sent_by(0, ring_all_gather(num_ranks)) * _megabytes(millions * 10**6, torch.int8)
