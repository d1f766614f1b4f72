"""Observer of DDP and FSDP2: what they know of, what changed in it since, and whether they reduce."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import sketch
from worldsize.source import Line, line_of


class WrappingObserver:
    """An observer of wrapped modules, their parameters, and calls and settings by which nothing is reduced."""

    def __init__(self, notebook: Notebook, names: Names) -> None:
        self._notebook, self._names = notebook, names
        self._ddps: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._reduced: weakref.WeakKeyDictionary[DistributedDataParallel, set[int]] = weakref.WeakKeyDictionary()
        self._wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that are or were in DDP
        self._hooked: weakref.WeakKeyDictionary[DistributedDataParallel, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._moved: Line | None = None  # where a module was first moved or cast since the last backward pass
        self._unsynced: dict[int, Line | None] = {}  # id of a module whose reduction by FSDP2 is off -> where
        self._in_ddp = 0
        self._said: set[str] = set()  # names that are not in DDP's list
        self._changed: dict[int, Line | None] = {}  # id of a parameter -> where it was registered or unfrozen last
        self.unsynced_line: Line | None = None  # where the reduction by FSDP2 was turned off, at the last backward pass
        self.local_lines: dict[int, Line | None] = {}  # id of a DDP whose last forward was inside no_sync -> its line

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        stack.callback(register_module_parameter_registration_hook(self._take_registration).remove)
        stack.callback(register_module_module_registration_hook(self._take_module).remove)
        replace(stack, torch.Tensor, "requires_grad_", self._wrap_requires_grad)
        replace(stack, nn.Module, "_apply", self._wrap_apply)
        replace(stack, FSDPModule, "set_requires_gradient_sync", self._wrap_sync)
        replace(stack, DistributedDataParallel, "__init__", self._wrap_ddp)
        replace(stack, DistributedDataParallel, "forward", self._wrap_ddp_forward)
        replace(stack, DistributedDataParallel, "no_sync", self._wrap_no_sync)
        replace(stack, DistributedDataParallel, "register_comm_hook", self._wrap_hook)
        replace(stack, fsdp, "fully_shard", self._wrap_fully_shard)
        replace(stack, Join, "__init__", self._wrap_join)

    def enter(self, module: nn.Module) -> None:
        """Note an outermost forward pass of a module that DDP holds, if it is not DDP that calls it."""
        if self._in_ddp or not torch.is_grad_enabled():
            return
        if any(one is module or any(part is module for part in one.modules()) for one in self._wrapped):
            self._notebook.say("forward past DDP")

    def _take_registration(self, _module: nn.Module, _name: str, parameter: Any) -> None:
        if self._ddps and parameter is not None:
            self._changed[id(parameter)] = line_of(sys._getframe(1))

    def _take_module(self, _module: nn.Module, _name: str, part: Any) -> None:
        if self._ddps and part is not None:
            self._changed.update({id(p): line_of(sys._getframe(1)) for p in part.parameters()})

    def _wrap_requires_grad(self, unfreeze: Callable[..., Any]) -> Callable[..., Any]:
        def unfrozen(tensor: torch.Tensor, requires_grad: bool = True) -> Any:
            if self._ddps and requires_grad and not tensor.requires_grad:
                self._changed[id(tensor)] = line_of(sys._getframe(1))
            return unfreeze(tensor, requires_grad)

        return unfrozen

    def _wrap_apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def applied(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._ddps and self._moved is None:
                self._moved = line_of(sys._getframe(1))
            return apply(module, *args, **kwargs)

        return applied

    def _wrap_sync(self, set_sync: Callable[..., Any]) -> Callable[..., Any]:
        def turned(module: Any, requires_gradient_sync: bool, *args: Any, **kwargs: Any) -> Any:
            if requires_gradient_sync:
                self._unsynced.pop(id(module), None)
            else:
                self._unsynced[id(module)] = line_of(sys._getframe(1))
            return set_sync(module, requires_gradient_sync, *args, **kwargs)

        return turned

    def _wrap_ddp(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:
            init(ddp, *args, **kwargs)
            with quietly():
                self._ddps.add(ddp)
                self._wrapped.add(ddp.module)
                self._names.learn(ddp)
                own = [p for name, p in ddp.module.named_parameters() if p.requires_grad and not _ignores(ddp, name)]
                self._reduced[ddp] = {id(p) for p in own}
                self._hooked[ddp] = {n: _accumulator(p) for n, p in ddp.module.named_parameters() if p.requires_grad}
                self._notebook.say(
                    "DDP",
                    names=[self._names.of(p) for p in own],
                    broadcasts_buffers=ddp.broadcast_buffers,
                    ranks=torch.distributed.get_process_group_ranks(ddp.process_group),
                )

        return __init__

    def _wrap_ddp_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def __forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
            self._in_ddp += 1
            if not ddp.require_backward_grad_sync and torch.is_grad_enabled():
                self.local_lines[id(ddp)] = line_of(sys._getframe(1))
            else:
                self.local_lines.pop(id(ddp), None)
            try:
                return forward(ddp, *args, **kwargs)
            finally:
                self._in_ddp -= 1

        return __forward

    def _wrap_no_sync(self, no_sync: Callable[..., Any]) -> Callable[..., Any]:
        def entered(ddp: Any) -> Any:
            self._notebook.say("no_sync")
            return no_sync(ddp)

        return entered

    def _wrap_hook(self, register: Callable[..., None]) -> Callable[..., None]:
        def registered(ddp: Any, state: object, hook: Callable[..., Any]) -> None:
            line = line_of(sys._getframe(1))

            @functools.wraps(hook)  # DDP looks at its signature
            def hooked(state: object, bucket: Any) -> Any:
                with quietly():
                    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
                    of = {name: sketch(one) for p, one in pairs if (name := self._names.of(p))}
                    self._notebook.say("gradients before hook", line, of=of, is_ddps=True)
                return hook(state, bucket)

            register(ddp, state, hooked)

        return registered

    def _wrap_join(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(join: Any, *args: Any, **kwargs: Any) -> None:
            self._notebook.say("join", line_of(sys._getframe(1)))
            init(join, *args, **kwargs)

        return __init__

    def _wrap_fully_shard(self, shard: Callable[..., Any]) -> Callable[..., Any]:
        def sharded(*args: Any, **kwargs: Any) -> Any:
            self._notebook.say("fully_shard", line_of(sys._getframe(1)))
            return shard(*args, **kwargs)

        return sharded

    def look(self) -> None:
        """Note, before a backward pass, what DDP and FSDP2 will not reduce.

        Of DDP: parameters that it did not know when it was made, and those whose accumulator of gradients, where its
        hook is, has been replaced since.
        """
        self.unsynced_line = next(iter(self._unsynced.values()), None)
        for ddp, accumulators in self._hooked.items():
            parameters = {n: p for n, p in ddp.module.named_parameters() if p.requires_grad and n in accumulators}
            now = {name: _accumulator(one) for name, one in parameters.items()}
            lost = [name for name, one in now.items() if one is not accumulators[name] and name not in self._said]
            if lost:
                self._said.update(lost)
                self._notebook.say("hooks lost", self._moved, names=[self._names.of(parameters[name]) for name in lost])
        self._moved = None
        known = set().union(*self._reduced.values())
        for ddp in self._ddps:
            for name, parameter in ddp.module.named_parameters():
                if _ignores(ddp, name):
                    continue
                if parameter.requires_grad and id(parameter) not in known and name not in self._said:
                    self._said.add(name)
                    self._names.learn(ddp)
                    self._notebook.say(
                        "not in DDP's list", self._changed.get(id(parameter)), name=self._names.of(parameter)
                    )


def _accumulator(parameter: torch.Tensor) -> Any:
    """The node of autograd's that adds to a parameter's gradient; a change of dtype or device makes a new one."""
    return torch.autograd.graph.get_gradient_edge(parameter).node


def _ignores(ddp: DistributedDataParallel, name: str) -> bool:
    """Whether DDP leaves a parameter out, as its maker asked."""
    return name in getattr(ddp, "parameters_to_ignore", ())
