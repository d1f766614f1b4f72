"""The answers of week 7's templates by other ways: tensors without data, rings and schedules played step by step."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from quiz_oracles import oracle, ring, ring_all_gather, sent_by


def _gigabytes(num_parameters: float, dtype: torch.dtype) -> float:
    """A tensor of so many billion numbers, in GB."""
    return torch.empty(round(num_parameters * 1e9), dtype=dtype, device="meta").nbytes / 1e9


def _held_gb(billions: float, num_ranks: int, stage: int) -> float:
    """Every tensor that a rank makes at a stage of ZeRO, added up."""
    part = billions / num_ranks
    tensors = [(part if stage >= 3 else billions, torch.bfloat16), (part if stage >= 2 else billions, torch.bfloat16)]
    tensors += [(part if stage >= 1 else billions, torch.float32)] * 3
    return sum(_gigabytes(num, dtype) for num, dtype in tensors)


@oracle("w07-stage-bytes")
def _(billions: float, num_ranks: int, stage: int) -> float:
    return _held_gb(billions, num_ranks, stage)


def _gather_gb(billions: float, num_ranks: int) -> float:
    """What a rank sends in an all-gather, or in a reduce-scatter, of a bfloat16 tensor."""
    return sent_by(0, ring_all_gather(num_ranks)) * _gigabytes(billions, torch.bfloat16) / num_ranks


def _reduce_gb(billions: float, num_ranks: int) -> float:
    """What a rank sends in an all-reduce less its second half."""
    whole = sent_by(0, ring(num_ranks)) * _gigabytes(billions, torch.bfloat16)
    return whole - _gather_gb(billions, num_ranks)


@oracle("w07-wire", sample=60)
def _(billions: float, num_ranks: int, stage: int) -> float:
    """The operations of a step, one after the other."""
    gather_gb, reduce_gb = _gather_gb(billions, num_ranks), _reduce_gb(billions, num_ranks)
    forward_gb = backward_gb = gather_gb if stage == 3 else 0.0
    after_update_gb = 0.0 if stage == 3 else gather_gb
    return forward_gb + backward_gb + reduce_gb + after_update_gb


@oracle("w07-first-that-fits")
def _(billions: float, num_ranks: int, memory_gb: int, activations_gb: int) -> dict[str, Any]:
    for stage, name in enumerate(("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")):
        left_gb = memory_gb - activations_gb - _held_gb(billions, num_ranks, stage)
        if left_gb >= 0:
            return {"stage": name, "left": left_gb}
    raise AssertionError("nothing fits")


@oracle("w07-tokens")
def _(tflops: int, gb_per_s: int, dtype: str) -> float:
    """For a layer of a thousand parameters: seconds on the wire over seconds of a token, forward and backward."""
    layer = torch.empty(1000, dtype=torch.bfloat16, device="meta")
    gradient = torch.empty(1000, dtype=getattr(torch, dtype), device="meta")
    wire_s = Fraction(2 * layer.nbytes + gradient.nbytes, gb_per_s * 10**9)
    multiply_adds = 3 * len(layer)  # forward, the gradient of the input, that of the weight
    return float(wire_s / Fraction(2 * multiply_adds, tflops * 10**12))


@oracle("w07-prefetch")
def _(num_layers: int, gather_ms: int, compute_ms: int) -> dict[str, Any]:
    """Both orders, played layer by layer."""
    alone = 0
    for _ in range(num_layers):
        alone += gather_ms
        alone += compute_ms
    arrived, now = gather_ms, 0
    for _ in range(num_layers):
        start = max(arrived, now)
        arrived, now = start + gather_ms, start + compute_ms
    return {"alone": alone, "ahead": now}


@oracle("w07-accumulate", sample=60)
def _(num_batches: int, num_ranks: int, billions: int, stage: int) -> float:
    """Micro-batch by micro-batch."""
    sent_gb = 0.0
    for _ in range(num_batches):
        if stage == 3:
            sent_gb += 2 * _gather_gb(billions, num_ranks)
        sent_gb += _reduce_gb(billions, num_ranks)
    return sent_gb + (_gather_gb(billions, num_ranks) if stage == 2 else 0.0)


@oracle("w07-hsdp")
def _(num_nodes: int, per_node: int, size_gb: int) -> dict[str, Any]:
    """Groups made of ranks in order, and a ring among those with the same place in their node."""
    ranks = range(num_nodes * per_node)
    shards = [rank for rank in ranks if rank // per_node == 0]
    copies = [rank for rank in ranks if rank % per_node == 0]
    part = size_gb / len(shards)
    return {"shards": len(shards), "part": part, "across": sent_by(0, ring(len(copies))) * part}


@oracle("w07-offload")
def _(billions: int, num_ranks: int, gb_per_s: int) -> float:
    """Three tensors there and back."""
    link_s = 0.0
    for _ in ("fetch", "send back"):
        for _ in ("weights", "first moment", "second moment"):
            link_s += _gigabytes(billions / num_ranks, torch.float32) / gb_per_s
    return 1000 * link_s


@oracle("w07-more-gpus")
def _(billions: int, memory_gb: int, activations_gb: int) -> int:
    """One GPU more until it fits."""
    num_ranks = 1
    while Fraction(16 * billions, num_ranks) + activations_gb > memory_gb:
        num_ranks += 1
    return num_ranks


@oracle("exam-sharding-waits")
def _(millions: int, tflops: int, gb_per_s: int) -> dict[str, Any]:
    """The tokens at which both take as long, for models of two sizes, and the GPUs that get so many."""

    def tokens_to_hide(num_parameters: int) -> Fraction:
        sent = [torch.empty(num_parameters, dtype=torch.bfloat16, device="meta").nbytes for _ in range(3)]
        a_token_s = sum(Fraction(2 * num_parameters, tflops * 10**12) for _ in range(3))  # forward; backward's two
        return Fraction(sum(sent), gb_per_s * 10**9) / a_token_s

    tokens, of_larger = tokens_to_hide(1000), tokens_to_hide(2000)
    larger = {1: "as many GPUs"}[of_larger / tokens]
    return {"tokens": float(tokens), "gpus": float(millions * 10**6 / tokens), "larger": larger}


@oracle("exam-units")
def _(num_layers: int, layer_millions: int, embedding_millions: int, num_ranks: int) -> float:
    """Units gathered and freed one after the other, and the most that is held meanwhile."""
    units_gb = [
        _gigabytes(size / 1000, torch.bfloat16) for size in [embedding_millions] + num_layers * [layer_millions]
    ]
    shards_gb = sum(size_gb / num_ranks for size_gb in units_gb)
    held_gb = most_gb = shards_gb
    for size_gb in units_gb:
        held_gb += size_gb
        most_gb = max(most_gb, held_gb)
        held_gb -= size_gb
    return most_gb
