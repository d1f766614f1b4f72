"""SyncBatchNorm on CPU tensors: torch has its kernels for GPUs alone, and refuses anything else."""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import SyncBatchNorm
from torch.nn.modules import _functions
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

_SMALL = (torch.float16, torch.bfloat16)  # whose statistics are in float32


def take_cpu_tensors() -> None:
    """Let this process's SyncBatchNorm layers, and DDP with them, take CPU tensors and communicate as on GPUs."""
    SyncBatchNorm.forward = _forward  # type: ignore[method-assign]
    DistributedDataParallel._passing_sync_batchnorm_handle = lambda _self, _module: None  # type: ignore[method-assign]
    for kernel in (_stats, _gather_stats_with_counts, _elemt, _backward_reduce, _backward_elemt):
        setattr(torch, f"batch_norm{kernel.__name__}", kernel)


def _forward(self: SyncBatchNorm, samples: torch.Tensor) -> torch.Tensor:
    """Normalise by the statistics of all ranks' samples in training, otherwise as BatchNorm does."""
    group: Any = self.process_group or dist.group.WORLD
    if not self.training or group is None or group.size() == 1:
        return _BatchNorm.forward(self, samples)
    self._check_input_dim(samples)
    self._check_non_zero_input_channels(samples)
    share = self.momentum or 0.0
    if self.num_batches_tracked is not None and self.track_running_stats:
        self.num_batches_tracked.add_(1)
        share = 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
    running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
    return _functions.SyncBatchNorm.apply(  # type: ignore[no-any-return]
        samples, self.weight, self.bias, *running, self.eps, share, group, group.size()
    )


# the kernels, by the ends of torch's names for them


def _stats(samples: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    variance, mean = torch.var_mean(_wide(samples), dim=_others(samples), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats_with_counts(
    _samples: torch.Tensor,
    means: torch.Tensor,
    invstds: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    shares = (counts / counts.sum()).to(means.dtype).unsqueeze(1)  # [ranks, 1]; means and invstds are [ranks, channels]
    mean = (shares * means).sum(0)
    variance = (shares * (invstds.square().reciprocal() - eps + (means - mean).square())).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * (counts.sum() / (counts.sum() - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return mean, torch.rsqrt(variance + eps)


def _elemt(
    samples: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    _eps: float,
) -> torch.Tensor:
    scale = invstd if weight is None else invstd * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return torch.addcmul(_along(samples, shift), _wide(samples), _along(samples, scale)).to(samples.dtype)


def _backward_reduce(
    grad: torch.Tensor,
    samples: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    _weight: torch.Tensor | None,
    *_needed: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    total = _wide(grad).sum(_others(grad))
    of_centred = (_wide(grad) * (_wide(samples) - _along(samples, mean))).sum(_others(grad))
    return total, of_centred, (of_centred * invstd).to(samples.dtype), total.to(samples.dtype)


def _backward_elemt(
    grad: torch.Tensor,
    samples: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    total: torch.Tensor,
    of_centred: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    num = counts.sum()
    centred = _wide(samples) - _along(samples, mean)
    inner = _wide(grad) - _along(samples, total / num) - centred * _along(samples, invstd.square() * of_centred / num)
    return (inner * _along(samples, invstd if weight is None else invstd * weight)).to(samples.dtype)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _SMALL else tensor


def _others(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions besides that of the channels."""
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _along(tensor: torch.Tensor, of_channel: torch.Tensor) -> torch.Tensor:
    """Shape one value for each channel so that it broadcasts over a tensor."""
    return of_channel.view([1, -1] + [1] * (tensor.dim() - 2))
