"""Numbers that a program reads from a tensor, and on paper are declared: how a router spreads tokens over experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def declared(tensor: torch.Tensor, *, on_paper: Sequence[int]) -> list[Any]:
    """The numbers in a tensor of one dim, as a list; on paper, where it has none, those of `on_paper`.

    Raises:
        ValueError: `on_paper` has not as many numbers as the tensor.
    """
    if tensor.dim() != 1 or len(on_paper) != len(tensor):
        raise ValueError(
            f"on_paper has {len(on_paper)} numbers; the tensor is of shape {tuple(tensor.shape)}: declare one for each"
        )
    from torch._subclasses.fake_tensor import FakeTensor

    return list(on_paper) if isinstance(tensor, FakeTensor) else tensor.tolist()
