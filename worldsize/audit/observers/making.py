"""Observer of how weights are made: on the way from the meta device, and after a state has been loaded."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import sketch
from worldsize.source import Line, line_of

_Place = tuple[weakref.ref[nn.Module], str]  # a module, and the name under which it has a parameter


class MakingObserver:
    """An observer of memory that is never written, of weights that are tied no longer, and of new frozen layers."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self.blank: dict[int, tuple[weakref.ref[torch.Tensor], list[float], Line | None]] = {}  # address -> tensor
        self._places: dict[
            int, tuple[weakref.ref[torch.Tensor], _Place]
        ] = {}  # id of a replaced parameter -> its place
        self._registered: dict[int, tuple[weakref.ref[torch.Tensor], _Place]] = {}  # id of a parameter -> its place
        self._shared: list[tuple[_Place, _Place]] = []  # places that have one parameter
        self._untied: list[tuple[_Place, _Place, Line | None]] = []
        self._full: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # parameters that a state was loaded into
        self._loaded: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that are part of a loaded one
        self._new: list[tuple[weakref.ref[torch.Tensor], str, Line | None]] = []  # parameters of layers that came later

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        stack.callback(register_module_forward_pre_hook(self._enter).remove)
        stack.callback(register_module_module_registration_hook(self._take_module).remove)
        stack.callback(register_module_parameter_registration_hook(self._take_parameter).remove)
        replace(stack, nn.Module, "to_empty", self._wrap_to_empty)
        replace(stack, nn.Module, "_apply", self._wrap_apply)
        replace(stack, nn.Module, "load_state_dict", self._wrap_load)
        replace(stack, DistributedDataParallel, "__init__", self._wrap_ddp)

    def _wrap_to_empty(self, to_empty: Callable[..., Any]) -> Callable[..., Any]:
        def emptied(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = to_empty(module, *args, **kwargs)
            with quietly():
                line = line_of(sys._getframe(1))
                for one in (*module.parameters(), *module.buffers()):
                    local = getattr(one, "_local_tensor", one)
                    if local.numel() and not local.is_meta:
                        self.blank[local.untyped_storage().data_ptr()] = weakref.ref(one), sketch(one), line
            return result

        return emptied

    def write(self, tensor: torch.Tensor) -> None:
        """Take a tensor's memory from the memory that nothing has been written to."""
        with contextlib.suppress(RuntimeError, NotImplementedError):  # no memory of its own
            self.blank.pop(tensor.untyped_storage().data_ptr(), None)

    def _wrap_apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def applied(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = dict(module._parameters)
            result = apply(module, *args, **kwargs)
            for name, old in before.items():
                if old is not None and module._parameters.get(name) is not old:
                    own = weakref.ref(module), name
                    known, place = self._places.get(id(old), (None, own))
                    if known is not None and known() is old:  # the same parameter, in a different module
                        self._untied.append((place, own, line_of(sys._getframe(1))))
                    self._places[id(old)] = weakref.ref(old), own
            return result

        return applied

    def _wrap_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = load(module, *args, **kwargs)
            with quietly():
                self._loaded.update(module.modules())
                matrices = {name: one for name, one in module.named_parameters() if one.dim() > 1}
                absent = [name for name in matrices if name in result.missing_keys and matrices[name] not in self._full]
                self._full.update({one: True for name, one in matrices.items() if name not in result.missing_keys})
                if 2 * len(absent) < len(matrices):  # else it is an adapter that is loaded, into a model that is there
                    line = line_of(sys._getframe(1))
                    for name in absent:
                        self._new.append((weakref.ref(matrices[name]), name, line))
            return result

        return loaded

    def _take_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        """Remember which places share one parameter, and note where one of them gets a different one."""
        if parameter is None:
            return
        own = weakref.ref(module), name
        old = module._parameters.get(name)
        shared = [one for one in self._shared if own in one[:2]]
        if old is not None and old is not parameter:
            for one in shared:
                self._shared.remove(one)
                self._untied.append((*one, line_of(sys._getframe(1))))
        known, place = self._registered.get(id(parameter), (None, own))
        if known is not None and known() is parameter and place != own:
            self._shared.append((place, own))
        self._registered[id(parameter)] = weakref.ref(parameter), own

    def _take_module(self, module: nn.Module, name: str, part: Any) -> None:
        if self._shared and part is not None and (old := module._modules.get(name)) not in (None, part):
            line, new = line_of(sys._getframe(1)), weakref.ref(part)
            for i, pair in enumerate(self._shared):
                if any(ref() is old for ref, _ in pair):  # a new module takes the place of one with a tied weight
                    one, other = ((new if ref() is old else ref, own) for ref, own in pair)
                    self._shared[i] = one, other
                    self._untied.append((one, other, line))
        if module in self._loaded and part is not None:
            line, matrices = line_of(sys._getframe(1)), [pair for pair in part.named_parameters() if pair[1].dim() > 1]
            self._new += [(weakref.ref(one), f"{name}.{own}", line) for own, one in matrices]

    def _wrap_ddp(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(ddp: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            self._look(module)  # before DDP writes what rank 0 has
            init(ddp, module, *args, **kwargs)

        return __init__

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if torch.is_grad_enabled():
            self._look(module)

    def _look(self, module: nn.Module) -> None:
        """Note what is wrong with a module's weights before they are used for the first time."""
        if not (self.blank or self._untied or self._new):
            return
        with quietly():
            own = dict(module.named_parameters()) | dict(module.named_buffers())
            for address, (ref, empty, line) in list(self.blank.items()):
                name = next((name for name, one in own.items() if one is ref()), None)
                if name is not None and sketch(own[name]) == empty:
                    self._notebook.say("never written", line, name=name)
                if name is not None or ref() is None:
                    self.blank.pop(address, None)
            for places in self._untied:
                tensors = [getattr(ref(), name, None) for ref, name in places[:2]]
                if None not in tensors and tensors[0] is not tensors[1]:
                    names = [next((n for n, p in own.items() if p is one), "a tensor") for one in tensors]
                    self._notebook.say("untied", places[2], names=names)
            self._untied.clear()
            known = {id(one) for one in own.values()}
            for ref, name, line in self._new:
                one = ref()
                if one is not None and id(one) in known and not one.requires_grad:
                    self._notebook.say("new and frozen", line, name=name)
            self._new.clear()
