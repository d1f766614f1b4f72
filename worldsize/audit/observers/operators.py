"""Observer of single operators: reads and writes of memory that is being transferred, values that leave for Python."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from worldsize.audit.notes import Notebook
from worldsize.audit.observers.communicating import CallsObserver, extent_of
from worldsize.audit.observers.patching import quietly
from worldsize.audit.observers.training import TrainingObserver
from worldsize.source import Line, line_of

_MOST_VALUES = 500  # `item()`s of a rank that are noted


class OperatorsObserver(TorchDispatchMode):
    """A dispatch mode that passes every operator on unchanged."""

    def __init__(self, notebook: Notebook, calls: CallsObserver, training: TrainingObserver) -> None:
        super().__init__()
        self._notebook, self._calls, self._training = notebook, calls, training
        self._num_values = 0
        self._first_bad: tuple[str, Line | None] | None = None
        self.recorders: list[list[tuple[str, float | None]]] = []  # of regions that will be recomputed

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):  # its own operators follow
            return NotImplemented
        if _is_fake(args):
            return func(*args, **kwargs)
        if self._calls.pending:
            with quietly():
                self._look_for_race(func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_fake((result,)):
            return result
        caller = _caller(sys._getframe(1))
        with quietly():
            self._look_at(func, args, result, caller)
        return result

    def _look_for_race(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if func.namespace != "aten" or func.is_view or func._schema.name in _HARMLESS:
            return
        writes = {i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write}
        named = [(i, tensor) for i, one in enumerate(args) for tensor in _tensors(one)]
        named += [(-1, tensor) for one in kwargs.values() for tensor in _tensors(one)]
        for transfer in list(self._calls.pending.values()):
            for index, tensor in named:
                extent = extent_of(tensor)
                is_write = index in writes or index == -1
                if extent is None or (transfer.is_read_only and not is_write):
                    continue
                if any(start < extent[1] and extent[0] < stop for start, stop in transfer.extents):
                    started = transfer.line
                    self._notebook.say(
                        "race",
                        line_of(sys._getframe(1)),
                        op=transfer.op,
                        operator=func._schema.name.removeprefix("aten::"),
                        is_write=is_write,
                        started=[started.filename, started.number, started.function, started.text] if started else None,
                    )
                    transfer.extents = []  # once is enough
                    break

    def _look_at(self, func: Any, args: tuple[Any, ...], result: Any, caller: FrameType) -> None:
        name = func._schema.name
        if name == "aten::_local_scalar_dense":
            line = line_of(caller)
            is_own = (
                line is not None and caller.f_code.co_filename == line.filename
            )  # the program's, not one of torch's
            if is_own and self._num_values < _MOST_VALUES and isinstance(result, int | float):
                self._num_values += 1
                self._notebook.say("value", line, value=float(result))
            return
        if name in _NORMS and (shard := self._calls.shard_of(args[0])):
            self._notebook.say("norm of shards", line_of(caller), function=name.removeprefix("aten::"), names=[shard])
        if func.namespace != "aten" or func.is_view or not (self._training.is_due or self.recorders):
            return
        floating = [t for t in _tensors(result) if t.is_floating_point() and t.numel()]
        for recorder in self.recorders:
            has_value = bool(floating) and "empty" not in name
            recorder.append((name, float(floating[0].detach().float().sum()) if has_value else None))
        if self._first_bad is None and floating and name not in _UNFILLED:
            self._look_for_bad(name, args, floating, caller)

    def _look_for_bad(self, name: str, args: tuple[Any, ...], floating: list[torch.Tensor], caller: FrameType) -> None:
        """Note the first operator that makes a NaN from finite numbers, or a lasting infinity."""
        total = float(floating[0].detach().sum())
        if math.isfinite(total):
            return
        if not bool(torch.isnan(floating[0]).any()) and not _overflows(name):
            return
        inputs = [t for one in args for t in _tensors(one) if t.is_floating_point()]
        if all(bool(torch.isfinite(t).all()) for t in inputs):
            self._first_bad = name, line_of(caller)
            self._notebook.say("not finite", self._first_bad[1], operator=name.removeprefix("aten::"), value=total)


_WRAPPERS = ("/torch/_dynamo/", "/torch/_compile.py")
_HARMLESS = ("aten::record_stream", "aten::is_pinned", "aten::resize_", "aten::set_")
_NORMS = ("aten::linalg_vector_norm", "aten::norm", "aten::_foreach_norm")
_UNFILLED = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::resize_")
_UNFILLED += (
    "aten::full",
    "aten::full_like",
    "aten::fill_",
    "aten::masked_fill",
    "aten::masked_fill_",
    "aten::scalar_tensor",
)


def _caller(frame: FrameType) -> FrameType:
    """The frame that ran the operator, below the functions in which torch wraps dispatch modes."""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _WRAPPERS):
        frame = frame.f_back
    return frame


def _is_fake(args: tuple[Any, ...]) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(tensor, FakeTensor) or tensor.is_meta for one in args for tensor in _tensors(one))


def _overflows(name: str) -> bool:
    """Whether an infinity that this operator makes of finite numbers is an overflow."""
    return name.rpartition("::")[2].rstrip("_") in (
        "exp",
        "pow",
        "mul",
        "mm",
        "addmm",
        "bmm",
        "div",
        "log",
        "sum",
        "_to_copy",
    )


def _tensors(one: Any) -> list[torch.Tensor]:
    if isinstance(one, torch.Tensor):
        return [one]
    return [part for part in one if isinstance(part, torch.Tensor)] if isinstance(one, list | tuple) else []
