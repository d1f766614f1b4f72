"""Sparse tensors as bytes, which ranks gather in order to sum them."""

from __future__ import annotations

import ctypes
import math
import struct

import torch

_INTEGER = struct.Struct("<q")


def packed(tensor: torch.Tensor) -> bytes:
    """Return a sparse tensor's number of values, its indices and its values as bytes."""
    coalesced = tensor.detach().coalesce()
    parts = coalesced.indices().contiguous(), coalesced.values().contiguous()
    return _INTEGER.pack(coalesced._nnz()) + b"".join(ctypes.string_at(one.data_ptr(), one.nbytes) for one in parts)


def fill_with_sum(tensor: torch.Tensor, gathered: bytes) -> None:
    """Replace a sparse tensor with the sum of those that were gathered; without bytes, leave it unchanged.

    Raises:
        ValueError: another rank's tensor has a different shape or type.
    """
    if not gathered:
        return
    parts, start = [], 0
    while start < len(gathered):
        part, start = _read(tensor, gathered, start)
        parts.append(part)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    with torch.no_grad():
        tensor.copy_(total.coalesce())  # a detached one would get the values for itself


def _read(like: torch.Tensor, gathered: bytes, start: int) -> tuple[torch.Tensor, int]:
    """Return the sparse tensor that begins at this byte, and where the next one begins."""
    (num_values,) = _INTEGER.unpack_from(gathered, start)
    start += _INTEGER.size
    num_dims, shape_of_value = like.sparse_dim(), like.shape[like.sparse_dim() :]
    end = start + num_values * (8 * num_dims + like.dtype.itemsize * math.prod(shape_of_value))
    if not start <= end <= len(gathered):
        raise ValueError(f"another rank's sparse tensor is not one of {like.dtype} and of shape {tuple(like.shape)}")
    indices = torch.empty((num_dims, num_values), dtype=torch.int64)
    values = torch.empty((num_values, *shape_of_value), dtype=like.dtype)
    for array in (indices, values):
        ctypes.memmove(array.data_ptr(), gathered[start : start + array.nbytes], array.nbytes)
        start += array.nbytes
    return torch.sparse_coo_tensor(indices, values, like.shape), end
