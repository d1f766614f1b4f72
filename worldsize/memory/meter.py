"""A meter of the memory that this process's tensors hold, on any device as a GPU's memory would fill."""

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
_entered: list[MemoryMeter] = []  # and not left yet


class OutOfMemory(torch.OutOfMemoryError):
    """A rank's tensors hold more than its described GPU has."""


def _quietly(take: Callable[..., None]) -> Callable[..., None]:
    """The same, but raising nothing: what cannot be read is not noted."""

    @functools.wraps(take)
    def taken(*args: Any) -> None:
        with contextlib.suppress(Exception):
            take(*args)

    return taken


class MemoryMeter:
    """A meter of the tensors that are given and of those that operations make or read inside `with`, by kind.

    Weights are the parameters and buffers of modules, the parameters of optimizers, and leaves that are updated in
    place. Gradients are what is in their `grad`, and optimizer state what an optimizer keeps. Activations are other
    tensors that a forward pass reads or makes while gradients are recorded, for as long as anything holds them;
    communication is what is sent and received and of no kind above. Temporaries are all others. Sizes are those of
    the storages, a DTensor's that of its shard, without the allocator's rounding. Without `counts_read`, a tensor that
    was there before and is not given does not count when it is read. Fake tensors, which hold nothing, count with
    `counts_fake`.

    Raises:
        OutOfMemory: inside `with`, where the tensors first hold more than `capacity` has.
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
        self._parameters: Any = WeakIdKeyDictionary()  # those that report their gradients
        self._modules = _Modules()
        self._updating: Callable[[], Any] = lambda: None  # the optimizer whose update came last
        self._has_shards = False
        self._ledger.note(tensors, is_made=True)

    @property
    def held_bytes(self) -> int:
        """The bytes held now."""
        return sum(self.held().values())

    @property
    def most_bytes(self) -> int:
        """The most bytes held at once so far."""
        return self._ledger.most_bytes

    def held(self) -> dict[str, int]:
        """The bytes held now, by kind."""
        return self._ledger.held()

    def use(self) -> MemoryUse:
        """The record so far."""
        return self._ledger.use(self._capacity and self._capacity.size_bytes)

    def restart(self) -> None:
        """Forget the past: the record and its peak begin with what is held now."""
        self._ledger.restart()

    def count_as(self, kind: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors as this kind, or as the one before it in `KINDS` that they are of already."""
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

    # what happens in the program

    @_quietly
    def take_operation(self, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Take an operation, once it has run."""
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
        """Raise `OutOfMemory` if more is held than fits."""
        if self._capacity and self._ledger.held_bytes > self._capacity.size_bytes:
            if optimizer := self._updating():
                self._after_update(optimizer, (), {})  # what it has made so far
            raise OutOfMemory(self._capacity.explain(self.held(), self._has_shards))


def note_communication(tensors: Iterable[torch.Tensor]) -> None:
    """Note that a process group sends or receives these tensors, where torch's own operations do not show it."""
    for meter in _entered:
        meter.count_as(COMMUNICATION, tensors)


def forget(parameter: torch.Tensor) -> None:
    """Have no meter refer to a parameter until it is used again."""
    for meter in _entered:
        if handle := meter._parameters.pop(parameter, None):
            handle.remove()


@contextlib.contextmanager
def in_new_thread() -> Iterator[None]:
    """Count the operations of this new thread, too, wherever this process's are counted."""
    with ExitStack() as stack:
        for meter in _entered:
            stack.enter_context(_Watch(meter))
        yield


def current() -> MemoryMeter | None:
    """The meter that was entered last."""
    return _entered[-1] if _entered else None


class _Watch(TorchDispatchMode):
    """The operations of a thread as they run on its tensors, with what they read and what they made."""

    def __init__(self, meter: MemoryMeter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the wrapper's own operations on this rank's tensors come through here next
        out = func(*args, **(kwargs or {}))
        if func.namespace == "prim":
            return out  # a question that only fake tensors ask, such as for their device
        self._meter.take_operation(func, tensors_in([args, list((kwargs or {}).values())]), tensors_in(out))
        self._meter.check_capacity()
        return out


class _Modules(threading.local):
    """The modules whose forward pass this thread is in, by name."""

    def __init__(self) -> None:
        self._inside: list[nn.Module] = []
        self._names: Any = WeakIdKeyDictionary()

    @property
    def current(self) -> str:
        """The name of the innermost one; empty outside all."""
        return self._names.get(self._inside[-1], "") if self._inside else ""

    def enter(self, module: nn.Module) -> bool:
        """Enter a module; true if it is the outermost."""
        self._inside.append(module)
        if module not in self._names:
            for name, inner in module.named_modules():
                self._names.setdefault(inner, f"{type(inner).__name__} {name}".strip())
        return len(self._inside) == 1

    def leave(self, module: nn.Module) -> None:
        """Leave a module, and those inside that have not been left."""
        if module in self._inside:
            while self._inside.pop() is not module:
                pass


@contextlib.contextmanager
def _resizes_reported(take: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Report each storage that `resize_` has given another size: no operation of torch shows that."""
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
    """The tensors among the arguments or the results of an operator, which may be lists of them."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []
