"""The device on which a rank works."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device() -> torch.device:
    """The device of this rank: its GPU where its process group is NCCL's, elsewhere the CPU.

    The CPU's tensors stand for a GPU's on an emulated cluster and on paper.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
