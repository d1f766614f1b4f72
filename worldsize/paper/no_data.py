"""Refusals of what a program cannot do on paper, where tensors have no data and other ranks send none."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import inspect
import sys
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import distributed_c10d

_OF_OBJECTS = {  # their results come from other ranks
    inspect.unwrap(getattr(distributed_c10d, name)).__code__: name
    for name in (
        "all_gather_object",
        "gather_object",
        "broadcast_object_list",
        "scatter_object_list",
        "recv_object_list",
    )
}


class NoData(RuntimeError):
    """The program reads the numbers in a tensor, or another rank's data, which do not exist on paper."""


def refusal(sentence: str) -> NoData:
    """Make the error with this text; inside a collective of objects, with a text about that instead."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if name := _OF_OBJECTS.get(frame.f_code):
            sentence = (
                f"on paper {name} cannot give objects of other ranks: leave out the call, compute the objects from "
                "the rank's number, or run this on an emulated cluster"
            )
        frame = frame.f_back
    return NoData(sentence)


def refuse_copies_of_data() -> None:
    """Make this process refuse to pass the data of a fake tensor to NumPy, to a file or to other code."""
    FakeTensor.numpy = FakeTensor.__array__ = _refused_numpy
    FakeTensor.__dlpack__ = _refused_numpy
    FakeTensor.__format__ = _format
    torch.utils.dlpack.to_dlpack = _refused_numpy
    FakeTensorMode.__reduce_ex__ = _refused_file
    FakeTensorMode.__deepcopy__ = lambda mode, _memo: mode  # a copied tensor stays in the same mode


def _format(tensor: torch.Tensor, spec: str) -> str:
    """Format one number as torch does for other tensors, and any other tensor as a whole."""
    return object.__format__(tensor, spec) if tensor.dim() else format(tensor.item(), spec)


def _refused_numpy(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise refusal(
        "on paper a tensor has no data for NumPy or other libraries: stay with torch's own operators, leave this out, "
        "or run it on an emulated cluster"
    )


def _refused_file(*_args: Any) -> NoReturn:
    raise refusal(
        "on paper a tensor has no data to be saved or pickled: leave out torch.save and similar calls, or run this "
        "on an emulated cluster, which prices files"
    )
