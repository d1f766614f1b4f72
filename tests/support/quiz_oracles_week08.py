"""Oracles of week 8's templates and of its exam questions: collectives message by message, tensors that are made."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from quiz_oracles import oracle, ring, ring_all_gather, sent_by


def _bytes(*size: int, dtype: torch.dtype = torch.bfloat16) -> int:
    """What a tensor of this shape takes."""
    return torch.empty(*size, dtype=dtype, device="meta").nbytes


@oracle("w08-layer-bytes", sample=60)
def _(width: int, num_ranks: int, num_tokens: int, passes: str) -> float:
    """Half by half, and pass by pass."""
    sent = 0.0
    for _ in passes.split(" and "):
        for _ in ("attention", "MLP"):
            sent += sent_by(0, ring(num_ranks)) * _bytes(num_tokens, width)
    return sent / 1e6


@oracle("w08-even-ranks")
def _(width: int, tflops: int, gb_per_s: int) -> float:
    """Where the seconds of a token's products and all-reduces, times the number of ranks, cross: by halving."""
    weights = 4 * width * width + 2 * width * 4 * width
    products_s = Fraction(2 * weights, tflops * 10**12)

    def wire_s(num_ranks: Fraction) -> Fraction:
        return 2 * 2 * (num_ranks - 1) * Fraction(_bytes(width), gb_per_s * 10**9)

    low, high = Fraction(1), Fraction(10**4)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if wire_s(middle) > products_s else (middle, high)
    return float(low)


@oracle("w08-loss", sample=60)
def _(thousands: int, num_ranks: int) -> float:
    gathered = sent_by(0, ring_all_gather(num_ranks)) * _bytes(1000 * thousands) / num_ranks
    reduced = sum(sent_by(0, ring(num_ranks)) * _bytes(1, dtype=torch.float32) for _ in ("maximum", "sum", "target"))
    return gathered / reduced


def _held_mb(tokens: int, width: int, num_ranks: int, sequence: bool) -> float:
    """Korthikanti's list of what a GPT layer keeps, entry by entry: bytes a number, and whether heads are cut."""
    held = [(2, True)] * 3 + [(2, True)]  # query, key, value; what the output projection multiplies
    held += [(2, False), (1, False)]  # attention's shared input; a dropout's mask
    held += [(2, False), (8, True), (8, True), (1, False)]  # the MLP's input, GELU's input and output; a mask
    held += [(2, False), (2, False)]  # both norms' inputs
    size = 1000 * tokens * width
    return sum(size * number / (num_ranks if cut or sequence else 1) for number, cut in held) / 1e6


@oracle("w08-held")
def _(tokens: int, width: int, num_ranks: int) -> dict[str, Any]:
    return {name: _held_mb(tokens, width, num_ranks, name == "sequence") for name in ("tensor", "sequence")}


@oracle("w08-ring-attention")
def _(num_ranks: int, num_heads: int, num_kv_heads: int, tflops: int, gb_per_s: float) -> float:
    """For heads of 128 numbers: tokens whose scores and weighted values take as long as their keys and values."""
    head = 128
    wire_s = 2 * _bytes(num_kv_heads, head) / (gb_per_s * 1e9)  # of a token
    pair_s = 2 * (2 * num_heads * head) / (tflops * 1e12)  # of a query and a key: two products
    return num_ranks * wire_s / pair_s / 1000


@oracle("w08-kv-heads")
def _(groups: int, per_group: int) -> int:
    """The largest number of ranks whose sets of key and value heads do not meet."""
    shared_by = [head // per_group for head in range(groups * per_group)]
    best = 1
    for num_ranks in range(1, len(shared_by) + 1):
        if len(shared_by) % num_ranks:
            continue
        share = len(shared_by) // num_ranks
        needed = [set(shared_by[rank * share : (rank + 1) * share]) for rank in range(num_ranks)]
        if sum(map(len, needed)) == groups:
            best = num_ranks
    return best


@oracle("exam-tp-saves", sample=60)
def _(width: int, num_ranks: int, tflops: int, gb_per_s: int) -> dict[str, Any]:
    """Both parts for 1,000 and for 2,000 tokens."""

    def parts(num_tokens: int, ranks: int) -> tuple[float, float]:
        weights = sum(torch.empty(*size, device="meta").numel() for size in ((4, width, width), (8, width, width)))
        wire_s = 2 * sent_by(0, ring(ranks)) * _bytes(num_tokens, width) / (gb_per_s * 1e9) if ranks > 1 else 0.0
        return 2 * weights * num_tokens / ranks / (tflops * 1e12), wire_s

    speedups = [sum(parts(tokens, 1)) / sum(parts(tokens, num_ranks)) for tokens in (1000, 2000)]
    products_s, wire_s = parts(1000, num_ranks)
    twice = "the same" if abs(speedups[1] / speedups[0] - 1) < 1e-9 else "larger"
    return {"products": 1e6 * products_s, "wire": 1e6 * wire_s, "speedup": speedups[0], "twice": twice}


@oracle("exam-sequence-memory")
def _(width: int, num_layers: int, tokens: int, num_ranks: int) -> float:
    held = [_held_mb(tokens, width, num_ranks, sequence) for sequence in (False, True)]
    return num_layers * (held[0] - held[1]) / 1e3
