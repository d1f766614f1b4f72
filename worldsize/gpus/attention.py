"""Sharding of attention on DTensors: torch has rules for the kernels of GPUs, and none for those of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def shard_by_batch_and_heads(dtensors: Any) -> None:
    """Let DTensors compute attention on each rank's samples or heads, as on a GPU.

    `dtensors` is the module `torch.distributed.tensor`, whose import by this one would take long.
    """
    from torch.distributed.tensor.experimental import register_sharding

    whole, by_sample, by_head = dtensors.Replicate(), dtensors.Shard(0), dtensors.Shard(1)

    def placements(num_outputs: int, num_tensors: int) -> Callable[..., Sequence[Any]]:
        def of_call(*args: Any, attn_mask: Any = None, **_options: Any) -> Sequence[Any]:
            others: list[Any] = [None] * (len(args) - num_tensors)
            # a mask counts as one of the inputs; most have no samples or heads to split
            mask = [] if attn_mask is None else [whole]
            return [
                ([place] * num_outputs, [place] * num_tensors + others + mask) for place in (whole, by_sample, by_head)
            ]

        return of_call

    register_sharding(_FORWARD)(placements(2, 3))
    register_sharding(_BACKWARD)(placements(3, 6))
