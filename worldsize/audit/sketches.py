"""Sketches of tensors: a few numbers by which two ranks' tensors can be compared without either being sent.

A sketch is the tensor's norm and its projections on fixed random signs. Equal tensors have equal sketches, and the mean
square of the differences between two sketches' projections estimates the squared norm of the tensors' difference.
Source: D. Achlioptas, "Database-friendly random projections", 2003.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

NUM_PROJECTIONS = 8
_WIDTH = 1024  # elements that share one row of signs
_MAX_ROWS = 1 << 16
Sketch = Sequence[float]  # norm, then projections


def sketch(tensor: Any) -> list[float]:
    """Sketch a tensor of any shape and dtype; of a DTensor, this rank's shard where it is in the whole.

    The projections of a DTensor's shards add up to those of the whole tensor.
    """
    import torch

    with torch.no_grad():
        local, offset = _local(tensor.detach())
        if local.is_complex():
            local = torch.view_as_real(local)
        if (
            local.is_meta or local.layout != torch.strided or (local.numel() and not local.untyped_storage().size())
        ):  # as FSDP2 leaves it
            return [0.0] * (1 + NUM_PROJECTIONS)
        flat = local.reshape(-1).to(torch.float32)
        norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))  # scaled gradients overflow float32
        before = offset % _WIDTH
        after = -(before + flat.numel()) % _WIDTH
        if before or after:
            flat = torch.nn.functional.pad(flat, (before, after))
        signs, row_signs = _signs(flat.device.type)
        projected = torch.zeros(NUM_PROJECTIONS, dtype=torch.float64, device=flat.device)
        rows, first = flat.view(-1, _WIDTH), offset // _WIDTH
        while len(rows):
            at = first % _MAX_ROWS
            part, rows = rows[: _MAX_ROWS - at], rows[_MAX_ROWS - at :]
            projected += ((part @ signs).double() * row_signs[at : at + len(part)]).sum(0)
            first += len(part)
        return [norm, *projected.tolist()]


def _local(tensor: Any) -> tuple[Any, int]:
    """This rank's part of a tensor, and the number of the whole tensor's elements before it."""
    if not hasattr(tensor, "to_local"):
        return tensor, 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local = tensor.to_local()
    if not local.numel() or not local.untyped_storage().size():
        return local, 0
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape[1:]) == tuple(tensor.shape[1:]):  # rows of the whole tensor, one after the other
        return local, (offsets[0] * tensor.shape[1:].numel() if offsets else 0)
    whole = local.new_zeros(tensor.shape)
    whole[tuple(slice(start, start + size) for start, size in zip(offsets, shape, strict=True))] = local
    return whole, 0


def total(parts: Sequence[Sketch]) -> Sketch:
    """The sketch of a tensor whose parts these are."""
    return [
        math.sqrt(sum(part[0] ** 2 for part in parts)),
        *(sum(p) for p in zip(*(part[1:] for part in parts), strict=True)),
    ]


@functools.cache
def _signs(device: str) -> tuple[Any, Any]:
    """The signs of the columns, and the signs of the rows by which rows with the same content differ."""
    import torch

    generator = torch.Generator().manual_seed(20)
    columns = torch.randint(2, (_WIDTH, NUM_PROJECTIONS), generator=generator).float() * 2 - 1
    rows = torch.randint(2, (_MAX_ROWS, NUM_PROJECTIONS), generator=generator).double() * 2 - 1
    return columns.to(device), rows.to(device)


def norm(one: Sketch) -> float:
    """The norm of the sketched tensor."""
    return one[0]


def is_finite(one: Sketch) -> bool:
    """Whether all elements of the sketched tensor are finite."""
    return all(map(math.isfinite, one))


def difference(one: Sketch, other: Sketch) -> float:
    """Estimate the norm of two tensors' difference, relative to the larger norm; 0 for equal ones."""
    if list(one) == list(other):
        return 0.0
    if not (is_finite(one) and is_finite(other)):
        return 0.0 if not (is_finite(one) or is_finite(other)) else math.inf
    largest = max(one[0], other[0])
    if not largest:
        return 0.0
    squares = sum((a - b) ** 2 for a, b in zip(one[1:], other[1:], strict=True)) / NUM_PROJECTIONS
    return math.sqrt(squares) / largest


def spread(sketches: Sequence[Sketch]) -> float:
    """The largest relative difference from the first of these sketches."""
    return max((difference(sketches[0], other) for other in sketches[1:]), default=0.0)


def factor(one: Sketch, other: Sketch) -> float | None:
    """Return c if the first tensor is c times the second, to within rounding; None if it is no multiple of it."""
    square = sum(b * b for b in other[1:])
    if not square or not (is_finite(one) and is_finite(other)):
        return None
    c = sum(a * b for a, b in zip(one[1:], other[1:], strict=True)) / square
    return c if difference(one, [abs(c) * other[0], *(c * b for b in other[1:])]) < 1e-3 else None
