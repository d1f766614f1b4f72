"""Observer of single operators: reads and writes of memory that is being transferred, values that leave for Python."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from worldsize.audit.notes import Notebook, as_list
from worldsize.audit.observers.communicating import CallsObserver, GatheredCopy, extent_of
from worldsize.audit.observers.making import MakingObserver
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.observers.training import TrainingObserver
from worldsize.source import line_of

_MOST_VALUES = 500  # `item()`s of a rank that are noted


class OperatorsObserver(TorchDispatchMode):
    """A dispatch mode that passes every operator on unchanged."""

    def __init__(
        self, notebook: Notebook, calls: CallsObserver, training: TrainingObserver, making: MakingObserver
    ) -> None:
        super().__init__()
        self._notebook, self._calls, self._training, self._making = notebook, calls, training, making
        self._num_values = 0
        self._regions: list[bool] = []  # of autocast that are open: whether it is on
        self._uncast: set[str] = set()  # operators that autocast does not know
        self._has_seen_bad, self._is_eager = False, False
        self._without_gradient: dict[int, tuple[weakref.ref[torch.Tensor], GatheredCopy]] = {}  # made of copies
        self.recorders: list[list[tuple[str, float | None]]] = []  # of regions that will be recomputed

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed; compiled functions run as they are written."""

        def wrap(compile_: Callable[..., Any]) -> Callable[..., Any]:
            def compiled(*args: Any, **kwargs: Any) -> Any:
                if not self._is_eager:  # under a dispatch mode Dynamo skips every frame, and fullgraph=True then raises
                    self._is_eager = True
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                return compile_(*args, **kwargs)

            return compiled

        replace(stack, torch.autocast, "__enter__", self._wrap_enter)
        replace(stack, torch.autocast, "__exit__", self._wrap_exit)
        replace(stack, torch, "compile", wrap)
        replace(stack, torch.nn.Module, "compile", wrap)
        stack.enter_context(self)

    def _wrap_enter(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        def entered(region: Any) -> Any:
            self._regions.append(region._enabled)
            return enter(region)

        return entered

    def _wrap_exit(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        def left(region: Any, *args: Any) -> Any:
            if self._regions:
                self._regions.pop()
            return leave(region, *args)

        return left

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):  # its own operators follow
            return NotImplemented
        if _is_fake(args):
            return func(*args, **kwargs)
        if self._calls.pending:
            with quietly():
                self._look_for_race(func, args, kwargs)
        if self._making.blank and not func.is_view:
            self._note_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        if _is_fake((result,)):
            return result
        caller = _caller(sys._getframe(1))
        with quietly():
            if _is_mutable(func):
                self._training.written(_written(func, args), caller)
            self._look_at(func, args, result, caller)
            if self._calls.copies and torch.is_grad_enabled():
                self._follow_copies(args, result)
        return result

    def _note_writes(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note which memory an operator writes, of memory that has not been written to."""
        for tensor in [t for one in args for t in _tensors(one)] if func.namespace != "aten" else _written(func, args):
            self._making.write(tensor)
        for one in kwargs.values():
            for tensor in _tensors(one):
                self._making.write(tensor)

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
                if extent is not None and transfer.meets(extent, is_write):
                    self._notebook.say(
                        "race",
                        line_of(sys._getframe(1)),
                        op=transfer.op,
                        operator=func._schema.name.removeprefix("aten::"),
                        is_write=is_write,
                        started=as_list(transfer.line),
                    )
                    transfer.extents = []  # once is enough
                    break

    def _follow_copies(self, args: tuple[Any, ...], result: Any) -> None:
        """Note where a gathered copy, or what is made of it alone, meets a tensor that has a gradient."""
        read = [tensor for one in args for tensor in _tensors(one)]
        source = next((copy for tensor in read if (copy := self._copy_in(tensor)) is not None), None)
        if source is None:
            return
        if any(tensor.requires_grad for tensor in read):
            self._calls.copies.remove(source)
            self._notebook.say("copy without gradient", source.line, op=source.op)
        else:
            for tensor in _tensors(result):
                self._without_gradient[id(tensor)] = weakref.ref(tensor), source

    def _copy_in(self, tensor: torch.Tensor) -> GatheredCopy | None:
        for copy in self._calls.copies:
            if copy.copy() is tensor:
                return copy
        known, source = self._without_gradient.get(id(tensor), (None, None))
        return source if known is not None and known() is tensor and source in self._calls.copies else None

    def _look_at(self, func: Any, args: tuple[Any, ...], result: Any, caller: FrameType) -> None:
        name = func._schema.name
        if self._regions and self._regions[-1] and func.namespace not in _TORCHS and name not in self._uncast:
            read = [t for one in args for t in _tensors(one) if t.is_floating_point()]
            if read and all(t.dtype == torch.float32 and t.requires_grad for t in read):
                self._uncast.add(name)
                self._notebook.say("not cast", line_of(caller), operator=name)
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
            recorder.append((name, float(floating[0].detach().float().abs().sum()) if has_value else None))
        if not self._has_seen_bad and floating and name not in _UNFILLED:
            self._look_for_bad(name, args, floating, caller)

    def _look_for_bad(self, name: str, args: tuple[Any, ...], floating: list[torch.Tensor], caller: FrameType) -> None:
        """Note the first operator that makes a NaN from finite numbers, or a lasting infinity."""
        if _is_finite(floating[0]):
            return
        if not bool(torch.isnan(floating[0]).any()) and not _overflows(name):
            return
        inputs = [t for one in args for t in _tensors(one) if t.is_floating_point()]
        if all(map(_is_finite, inputs)):
            self._has_seen_bad = True
            self._notebook.say(
                "not finite",
                line_of(caller),
                operator=name.removeprefix("aten::"),
                is_nan=bool(torch.isnan(floating[0]).any()),
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite: then so is their sum, which is quick, unless it overflows."""
    if tensor.element_size() > 1 and math.isfinite(float(tensor.sum())):  # numbers of eight bits have no sum
        return True
    return bool(torch.isfinite(tensor).all())


_TORCHS = ("aten", "prims", "c10d", "_c10d_functional", "c10d_functional", "fsdp", "quantized", "profiler", "inductor")
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


@functools.cache
def _is_mutable(func: Any) -> bool:
    return func.namespace == "aten" and func._schema.is_mutable


def _written(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments that it writes into."""
    pairs = zip(func._schema.arguments, args, strict=False)
    return [t for at, one in pairs if at.alias_info is not None and at.alias_info.is_write for t in _tensors(one)]


def _tensors(one: Any) -> list[torch.Tensor]:
    if isinstance(one, torch.Tensor):
        return [one]
    return [part for part in one if isinstance(part, torch.Tensor)] if isinstance(one, list | tuple) else []
