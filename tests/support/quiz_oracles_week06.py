"""The answers of week 6's templates by other ways: rounded sums, torch's own scaler, tensors, played schedules."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import torch
from quiz_oracles import oracle
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


def _gigabytes(num: float, dtype: torch.dtype) -> float:
    return torch.empty(round(num), dtype=dtype, device="meta").nbytes / 1e9


@oracle("w06-sum-stops", sample=60)
def _(dtype: str, value: float, num: int) -> float:
    """One rounded addition after the other, until nothing changes."""
    total, one = torch.zeros((), dtype=getattr(torch, dtype)), torch.tensor(value, dtype=getattr(torch, dtype))
    for _ in range(num):
        before, total = total, total + one
        if total == before:
            break
    return total.item()


@oracle("w06-smallest-rate")
def _(dtype: str, thousandths: int) -> float:
    """The distance to the next number, as torch says it."""
    weight = torch.tensor(thousandths / 1000, dtype=getattr(torch, dtype))
    next_larger = torch.nextafter(weight, torch.ones((), dtype=weight.dtype))
    return 1e6 * (next_larger.double() - weight.double()).item() / 2


def _gpt_tensors(length: int, num_sequences: int, width: int, num_heads: int) -> dict[str, list[torch.Tensor]]:
    """All that a layer with dropout keeps for backward, tensor by tensor."""

    def made(*sizes: int, is_mask: bool = False) -> torch.Tensor:
        return torch.empty(sizes, dtype=torch.bool if is_mask else torch.bfloat16, device="meta")

    token = (num_sequences, length, width)
    pairs = (num_sequences, num_heads, length, length)
    others = [made(*token) for _ in range(2)]  # inputs of the norms
    others += [made(*token), *(made(*token) for _ in range(3))]  # normalised; query, key, value
    others += [made(*token), made(*token, is_mask=True)]  # attention's output, a mask
    others += [made(*token), *(made(num_sequences, length, 4 * width) for _ in range(2)), made(*token, is_mask=True)]
    core = [made(*pairs), made(*pairs, is_mask=True), made(*pairs)]
    return {"core": core, "others": others}


@oracle("w06-gpt-activations")
def _(num_layers: int, width: int, num_heads: int, length: int, num_sequences: int) -> float:
    kept = _gpt_tensors(length, num_sequences, width, num_heads)
    return sum(tensor.nbytes for _ in range(num_layers) for tensors in kept.values() for tensor in tensors) / 1e9


@lru_cache
def _products_again(num: int, has_dropout: bool) -> int:
    """How many of so many equal products torch's checkpoint runs a second time."""
    layers = [nn.Linear(4, 4, bias=False) for _ in range(num)] + ([nn.Dropout()] if has_dropout else [])
    flops = []
    for is_checkpointed in (False, True):
        x, block = torch.randn(2, 4, requires_grad=True), nn.Sequential(*layers)
        with FlopCounterMode(display=False) as counter:
            y = checkpoint(block, x, use_reentrant=False) if is_checkpointed else block(x)
            y.sum().backward()
        flops.append(counter.get_total_flops())
    return (flops[1] - flops[0]) // (2 * 2 * 4 * 4)


@oracle("w06-early-stop")
def _(num: int, each: int, last: int) -> dict[str, float]:
    """The products that torch itself repeats, and their operations."""
    work = [each] * (num - 1) + [last]
    plain, dropped = (sum(work[: _products_again(num, has_dropout)]) for has_dropout in (False, True))
    return {"plain": plain, "dropout": dropped, "percent": 100 * dropped / sum(3 * one for one in work)}


@oracle("w06-mean-of-means")
def _(few: int, many: int, high_tenths: int, low_tenths: int) -> dict[str, float]:
    """Token by token."""
    parts = [torch.full((few,), high_tenths / 10).double(), torch.full((many,), low_tenths / 10).double()]
    means = torch.stack([part.mean() for part in parts])
    return {"right": torch.cat(parts).mean().item(), "wrong": means.mean().item()}


@oracle("w06-dynamic-scale", sample=40)
def _(power: int, interval: int, overflows: int, good: int) -> float:
    """torch's own scaler, with gradients that are infinite or not."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, growth_interval=interval)
    for factor in [torch.inf] * overflows + [0.0] * good + [torch.inf]:
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@oracle("w06-states")
def _(billions: float, gradients: str) -> float:
    """The bytes of each tensor."""
    dtypes = [torch.bfloat16, getattr(torch, gradients), torch.float32, torch.float32, torch.float32]
    return sum(_gigabytes(billions * 1e9, dtype) for dtype in dtypes)


@oracle("w06-hfu-and-mfu")
def _(hfu: float, repeated: int) -> float:
    """A step of a hundred operations forward, in the time that the hardware takes for all."""
    useful, again = 100 + 200, repeated
    time = (useful + again) / (hfu / 100)
    return 100 * useful / time


@oracle("w06-best-segment")
def _(num_layers: int, input_mb: int, multiple: int) -> float:
    """The length at which a slightly longer segment is as bad as a slightly shorter one, by halving an interval."""

    def peak_mb(length: float) -> float:
        return input_mb * num_layers / length + length * input_mb * multiple

    low, high = 0.1, 100.0
    for _ in range(60):
        middle, step = (low + high) / 2, 1e-4
        low, high = (middle, high) if peak_mb(middle + step) < peak_mb(middle - step) else (low, middle)
    return low


@oracle("w06-core")
def _(width: int, num_heads: int, length: int) -> dict[str, float]:
    """Bytes of tensors, and operations of products without data."""
    kept = {
        name: sum(one.nbytes for one in tensors) for name, tensors in _gpt_tensors(length, 1, width, num_heads).items()
    }
    products = [
        (length, width, 3 * width),
        (length, width, width),
        (length, width, 4 * width),
        (length, 4 * width, width),
    ]
    core = [(length, width, length), (length, length, width)]
    work = {
        name: sum(2 * a * b * c for a, b, c in sizes) for name, sizes in (("layer", [*products, *core]), ("core", core))
    }
    return {
        "saved": 100 * kept["core"] / sum(kept.values()),
        "more": 100 * work["core"] / sum(itertools.repeat(work["layer"], 3)),
    }


@oracle("exam-scale-range")
def _(smallest: int, largest: int) -> dict[str, float]:
    """All scales, tried on torch's own numbers."""
    ends = torch.tensor([2.0**-smallest, 2.0**-largest], dtype=torch.float64)

    def fits(power: int) -> bool:
        scaled = (ends * 2.0**power).to(torch.float16)
        return bool(scaled.isfinite().all()) and scaled[0].item() == ends[0].item() * 2.0**power

    powers = [power for power in range(60) if fits(power)]
    return {"low": min(powers), "high": max(powers)}


@oracle("exam-llama-activations", sample=60)
def _(num_layers: int, width: int, halves: int, length: int) -> float:
    """The bytes of the tensors that the text lists."""
    hidden = width * halves // 2
    widths = [width, width, width, width, width, width, width, width, hidden, hidden, hidden, hidden]
    layer = sum(torch.empty(length, one, dtype=torch.bfloat16, device="meta").nbytes for one in widths)
    return sum(layer for _ in range(num_layers)) / 1e9


@oracle("exam-accumulation-steps")
def _(memory: int, states: int, each: int, batch: int) -> dict[str, Any]:
    """Larger and larger micro-batches, until one does not fit; then the step, one after the other."""
    micro = 1
    while states + 2 * micro * each <= memory:
        micro *= 2
    left, steps = batch, 0
    while left > 0:
        left, steps = left - micro, steps + 1
    return {"micro": micro, "steps": steps, "what": "the micro-batch"}
