"""Strides of tensors that are communicated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether NCCL would refuse a tensor for its strides. Source: check_gpu_single_tensor in ProcessGroupNCCL.cpp."""
    import torch

    if tensor.layout != torch.strided or tensor.is_contiguous():
        return False
    other = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return other is None or not tensor.is_contiguous(memory_format=other)
