"""Numbers that a program reads from a tensor and declares on paper, such as a router's tokens per expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def declared(tensor: torch.Tensor, *, on_paper: Sequence[int]) -> list[Any]:
    """Return the numbers in a one-dimensional tensor as a list; on paper, where it has no data, those of `on_paper`.

    Raises:
        ValueError: `on_paper` does not have one number per element of the tensor.
    """
    if tensor.dim() != 1 or len(on_paper) != len(tensor):
        raise ValueError(
            f"on_paper has {len(on_paper)} numbers; the tensor has shape {tuple(tensor.shape)}: declare one number "
            "for each element"
        )
    from torch._subclasses.fake_tensor import FakeTensor

    return list(on_paper) if isinstance(tensor, FakeTensor) else tensor.tolist()
