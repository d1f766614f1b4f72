"""Observer of DDP: what it knew when it was made, what changed in it since, and whether its own forward is called."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.source import Line, line_of


class WrappingObserver:
    """An observer of modules in DDP, their parameters, and calls that pass DDP by."""

    def __init__(self, notebook: Notebook, names: Names) -> None:
        self._notebook, self._names = notebook, names
        self._ddps: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._reduced: weakref.WeakKeyDictionary[DistributedDataParallel, set[int]] = weakref.WeakKeyDictionary()
        self._in_ddp = 0
        self._said: set[str] = set()  # names that are not in DDP's list
        self._changed: dict[int, Line | None] = {}  # id of a parameter -> where it was registered or unfrozen last
        self.local_lines: dict[int, Line | None] = {}  # id of a DDP whose last forward was inside no_sync -> its line

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        stack.callback(register_module_parameter_registration_hook(self._take_registration).remove)
        stack.callback(register_module_module_registration_hook(self._take_module).remove)
        replace(stack, torch.Tensor, "requires_grad_", self._wrap_requires_grad)
        replace(stack, DistributedDataParallel, "__init__", self._wrap_ddp)
        replace(stack, DistributedDataParallel, "forward", self._wrap_ddp_forward)
        replace(stack, DistributedDataParallel, "no_sync", self._wrap_no_sync)

    def enter(self, module: nn.Module) -> None:
        """Note an outermost forward pass of a module that DDP holds, if it is not DDP that calls it."""
        if not self._in_ddp and torch.is_grad_enabled():
            held = (ddp.module for ddp in self._ddps)
            if any(one is module or any(part is module for part in one.modules()) for one in held):
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

    def _wrap_ddp(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:
            init(ddp, *args, **kwargs)
            with quietly():
                self._ddps.add(ddp)
                self._names.learn(ddp)
                own = [p for name, p in ddp.module.named_parameters() if p.requires_grad and not _ignores(ddp, name)]
                self._reduced[ddp] = {id(p) for p in own}
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

    def look(self) -> None:
        """Note parameters in DDP's module that are trained and that it did not know when it was made."""
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


def _ignores(ddp: DistributedDataParallel, name: str) -> bool:
    """Whether DDP leaves a parameter out, as its maker asked."""
    return name in getattr(ddp, "parameters_to_ignore", ())
