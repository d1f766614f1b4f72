"""The device on which a rank works."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device() -> torch.device:
    """Return this rank's device: its GPU if its process group uses NCCL, otherwise the CPU.

    On an emulated cluster and on paper, CPU tensors stand in for GPU tensors.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
