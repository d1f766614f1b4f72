"""Observer of modes: whether modules that behave differently in training and in evaluation are in the right one."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.spectral_norm import SpectralNorm

from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.source import Line, line_of


class ModesObserver:
    """An observer of the modes in which modules are called."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._stack: list[nn.Module] = []  # the modules whose forward passes are running
        self._changing = False  # whether a module's mode is being set
        self._left: Line | None = None  # where training was last left
        self._sensitive: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]]
        self._sensitive = weakref.WeakKeyDictionary()  # module -> its parts that behave differently by mode
        self._trained: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules with spectral norm
        self._said: set[Any] = set()

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        stack.callback(register_module_forward_pre_hook(self._enter).remove)
        stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
        replace(stack, nn.Module, "train", self._wrap_train)
        replace(stack, nn.functional, "dropout", self._wrap_dropout)
        replace(stack, nn.functional, "scaled_dot_product_attention", self._wrap_attention)

    def _wrap_train(self, train: Callable[..., Any]) -> Callable[..., Any]:
        def changed(module: nn.Module, mode: bool = True) -> Any:
            if self._changing:
                return train(module, mode)
            self._changing = True
            if not mode:
                self._left = line_of(sys._getframe(1))
            try:
                return train(module, mode)
            finally:
                self._changing = False

        return changed

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._stack.append(module)
        with quietly():
            if len(self._stack) == 1 and torch.is_grad_enabled():
                self._note_mode(module)
            if not module.training and id(module) not in self._said and self._has_no_statistics(module):
                self._said.add(id(module))
                self._notebook.say("initial statistics", module=type(module).__name__)
            elif module.training and _has_spectral_norm(module):
                self._trained.add(module)

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _note_mode(self, module: nn.Module) -> None:
        """Note whether a module's parts that care are in training, once a step."""
        if module not in self._sensitive:
            self._sensitive[module] = [weakref.ref(one) for one in module.modules() if _is_sensitive(one)]
        parts = [part for ref in self._sensitive[module] if (part := ref()) is not None]
        key = id(module), self._notebook.step
        if parts and key not in self._said:
            self._said.add(key)
            is_training = any(part.training for part in parts)
            self._notebook.say("mode", None if is_training else self._left, is_training=is_training)

    def _has_no_statistics(self, module: nn.Module) -> bool:
        """Whether a module in evaluation would use statistics that no training pass has made or loaded."""
        if isinstance(module, _BatchNorm):
            count, mean = module.num_batches_tracked, module.running_mean
            return count is not None and mean is not None and not int(count) and not bool(mean.any())
        return _has_spectral_norm(module) and module not in self._trained

    def _wrap_dropout(self, drop: Callable[..., Any]) -> Callable[..., Any]:
        def dropped(inputs: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            self._note_drop(p if training else 0.0)
            return drop(inputs, p, training, inplace)

        return dropped

    def _wrap_attention(self, attend: Callable[..., Any]) -> Callable[..., Any]:
        def attended(*args: Any, **kwargs: Any) -> Any:
            self._note_drop(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))
            return attend(*args, **kwargs)

        return attended

    def _note_drop(self, rate: float) -> None:
        """Note elements that are dropped, once for each line, if all modules around are in evaluation."""
        if rate and self._stack and not any(one.training for one in self._stack if not _is_ddp(one)):
            line = line_of(sys._getframe(2))
            if line not in self._said:
                self._said.add(line)
                self._notebook.say("drops in evaluation", line, module=type(self._stack[-1]).__name__, rate=rate)


def _is_sensitive(module: nn.Module) -> bool:
    """Whether a module behaves differently in training and in evaluation."""
    return isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0)


def _is_ddp(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel)


def _has_spectral_norm(module: nn.Module) -> bool:
    return any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
