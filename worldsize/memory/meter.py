"""A meter of the memory that this process's tensors hold, on any device, as it would fill a GPU."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils.weak import WeakIdKeyDictionary

from worldsize.memory.capacity import Capacity
from worldsize.memory.ledger import Ledger
from worldsize.memory.use import (
    ACTIVATIONS,
    COMMUNICATION,
    GRADIENTS,
    OPTIMIZER_STATE,
    TEMPORARIES,
    WEIGHTS,
    MemoryUse,
)

_COMMUNICATING = ("c10d", "_c10d_functional")
_entered: list[MemoryMeter] = []  # meters entered and not left yet


class OutOfMemory(torch.OutOfMemoryError):
    """A rank's tensors hold more than its described GPU has."""


def _quietly(take: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function to suppress its exceptions: what cannot be read is not recorded."""

    @functools.wraps(take)
    def taken(*args: Any) -> None:
        with contextlib.suppress(Exception):
            take(*args)

    return taken


class MemoryMeter:
    """A meter of given tensors and of those that operations make or read inside `with`, by kind.

    Weights are the parameters and buffers of modules, the parameters of optimizers, and leaves that are updated in
    place. Gradients are the tensors in their `grad`, and optimizer state is what an optimizer keeps. Activations are
    other tensors that a forward pass reads or makes while gradients are recorded, for as long as anything holds them;
    communication is anything else that is sent or received. All other tensors are temporaries. Sizes are those of the
    storages, for a DTensor of its shard, without the allocator's rounding. Without `counts_read`, a tensor that existed
    before and was not given does not count when it is read. Fake tensors, which have no memory, count with
    `counts_fake`.

    Raises:
        OutOfMemory: inside `with`, as soon as the tensors hold more than `capacity`.
    """

    def __init__(
        self,
        tensors: Iterable[torch.Tensor] = (),
        capacity: Capacity | None = None,
        counts_read: bool = True,
        counts_fake: bool = False,
    ) -> None:
        self._ledger, self._capacity = Ledger(counts_read, counts_fake), capacity
        self._stack = ExitStack()
        self._parameters: Any = WeakIdKeyDictionary()  # parameters whose gradients are hooked
        self._modules = _Modules()
        self._updating: Callable[[], Any] = lambda: None  # the optimizer that updated last
        self._has_shards = False
        self._ledger.note(tensors, is_made=True)

    @property
    def held_bytes(self) -> int:
        """The number of bytes held now."""
        return sum(self.held().values())

    @property
    def most_bytes(self) -> int:
        """The most bytes held at once so far, or since the last `reset_peak`."""
        return self._ledger.most_bytes

    def held(self) -> dict[str, int]:
        """The bytes held now, by kind."""
        return self._ledger.held()

    def use(self) -> MemoryUse:
        """Return the memory use recorded so far."""
        return self._ledger.use(self._capacity and self._capacity.size_bytes)

    def restart(self) -> None:
        """Restart the record and its peak from what is held now."""
        self._ledger.restart()

    def reset_peak(self) -> None:
        """Restart `most_bytes` from what is held now; the record goes on."""
        self._ledger.reset_peak()

    def count_as(self, kind: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors as this kind, unless they already have an earlier kind in `KINDS`."""
        self._ledger.note(tensors, kind, self._modules.current)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for handle in (
                register_module_parameter_registration_hook(self._take_registration),
                register_module_forward_pre_hook(self._enter_module),
                register_module_forward_hook(self._leave_module, always_call=True),
                register_optimizer_step_pre_hook(self._before_update),
                register_optimizer_step_post_hook(self._after_update),
            ):
                stack.callback(handle.remove)
            stack.enter_context(_resizes_reported(self._take_resize))
            stack.enter_context(_Watch(self))
            _entered.append(self)
            stack.callback(_entered.remove, self)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for handle in list(self._parameters.values()):
            handle.remove()
        self._parameters.clear()

    # events in the program

    @_quietly
    def take_operation(self, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Record an operation that has run."""
        self._ledger.begin_operation()
        self._take_weights(func, inputs)
        is_recorded = torch.is_grad_enabled() and any(one.requires_grad for one in inputs)
        kind = ACTIVATIONS if is_recorded else TEMPORARIES
        if func.namespace in _COMMUNICATING:
            kind = COMMUNICATION
        is_made = func.namespace == "aten" and not func.is_view
        self._ledger.note(outputs, kind, self._modules.current, is_made)
        self._ledger.note(inputs, kind, self._modules.current)

    def _take_weights(self, func: Any, inputs: list[torch.Tensor]) -> None:
        for one in inputs:
            if isinstance(one, nn.Parameter):
                self._take_parameter(one)
        if inputs and func.namespace == "aten" and func._schema.is_mutable and not torch.is_grad_enabled():
            changed = inputs[0]
            if changed.is_leaf and changed.requires_grad:
                self._take_parameter(changed)

    def _take_parameter(self, parameter: torch.Tensor) -> None:
        if parameter.requires_grad and parameter.is_leaf and parameter not in self._parameters:
            self._parameters[parameter] = parameter.register_post_accumulate_grad_hook(self._take_gradient)
        self._has_shards |= is_traceable_wrapper_subclass(parameter)
        self._ledger.note([parameter], WEIGHTS, self._modules.current)
        self._take_gradient(parameter)

    @_quietly
    def _take_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._ledger.note([parameter.grad], GRADIENTS, self._modules.current)

    @_quietly
    def _take_registration(self, module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            self._ledger.note([parameter], WEIGHTS, type(module).__name__)

    def _take_resize(self, storage: torch.UntypedStorage) -> None:
        self._ledger.note_storages([storage])
        self.check_capacity()

    @_quietly
    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        if self._modules.enter(module):
            for parameter in module.parameters():
                self._take_parameter(parameter)
            self._ledger.note(module.buffers(), WEIGHTS)

    @_quietly
    def _leave_module(self, module: nn.Module, _args: Any, _output: Any) -> None:
        self._modules.leave(module)

    @_quietly
    def _before_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._updating = weakref.ref(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._take_parameter(parameter)

    @_quietly
    def _after_update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            self._ledger.note(tensors_in(list(state.values())), OPTIMIZER_STATE)

    def check_capacity(self) -> None:
        """Raise `OutOfMemory` if the tensors exceed the capacity."""
        if self._capacity and self._ledger.held_bytes > self._capacity.size_bytes:
            if optimizer := self._updating():
                self._after_update(optimizer, (), {})  # include the state that it has made so far
            raise OutOfMemory(self._capacity.explain(self.held(), self._has_shards))


def note_communication(tensors: Iterable[torch.Tensor]) -> None:
    """Record that a process group sends or receives these tensors, which torch's operations do not show."""
    for meter in _entered:
        meter.count_as(COMMUNICATION, tensors)


def forget(parameter: torch.Tensor) -> None:
    """Remove all meters' references to a parameter until it is used again."""
    for meter in _entered:
        if handle := meter._parameters.pop(parameter, None):
            handle.remove()


@contextlib.contextmanager
def in_new_thread() -> Iterator[None]:
    """Count also this new thread's operations in the meters that this process has entered."""
    with ExitStack() as stack:
        for meter in _entered:
            stack.enter_context(_Watch(meter))
        yield


def current() -> MemoryMeter | None:
    """Return the meter that was entered last, if any."""
    return _entered[-1] if _entered else None


class _Watch(TorchDispatchMode):
    """A mode that reports a thread's operations to a meter, with their inputs and outputs."""

    def __init__(self, meter: MemoryMeter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the wrapper's operations on this rank's inner tensors come through here next
        out = func(*args, **(kwargs or {}))
        if func.namespace == "prim":
            return out  # an operator that only fake tensors call, such as for their device
        self._meter.take_operation(func, tensors_in([args, list((kwargs or {}).values())]), tensors_in(out))
        self._meter.check_capacity()
        return out


class _Modules(threading.local):
    """The names of the modules whose forward pass this thread is in."""

    def __init__(self) -> None:
        self._inside: list[nn.Module] = []
        self._names: Any = WeakIdKeyDictionary()

    @property
    def current(self) -> str:
        """The name of the innermost module; empty outside all."""
        return self._names.get(self._inside[-1], "") if self._inside else ""

    def enter(self, module: nn.Module) -> bool:
        """Enter a module; return whether it is the outermost."""
        self._inside.append(module)
        if module not in self._names:
            for name, inner in module.named_modules():
                self._names.setdefault(inner, f"{type(inner).__name__} {name}".strip())
        return len(self._inside) == 1

    def leave(self, module: nn.Module) -> None:
        """Leave a module, and any inside it that have not been left."""
        if module in self._inside:
            while self._inside.pop() is not module:
                pass


@contextlib.contextmanager
def _resizes_reported(take: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Report each storage whose size `resize_` changes, which no operation of torch shows."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size_bytes: int) -> Any:
        resized = resize(storage, size_bytes)
        take(storage)
        return resized

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors among an operator's arguments or results, including those in lists."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []
