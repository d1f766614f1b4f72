"""Observer of what becomes of gradients: whether they are cleared, whether a step uses them, and what it changes."""

from __future__ import annotations

import contextlib
import heapq
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import norm, sketch
from worldsize.source import Line, line_of

_MOST_WATCHED = 3  # parameters of an optimizer whose gradients are followed
_MOST_COMPARED = 1024  # elements of a weight that are compared before and after a step
_LOW = (torch.bfloat16, torch.float16)


@dataclass
class _Watched:
    """A few parameters of one optimizer, with the gradients that they had when they were last seen."""

    gradients: list[tuple[weakref.ref[torch.Tensor], list[float]]] = field(default_factory=list)
    is_cleared: bool = False
    is_added: bool = False  # whether a backward pass has added to gradients that were there
    num_passes: int = 0  # backward passes since the step

    def look(self) -> None:
        """Find out whether the gradients have been cleared, or changed in any other way, since they were seen."""
        self.is_cleared |= any(_sketch_of(one()) != seen for one, seen in self.gradients)

    def look_after(self) -> None:
        """Find out whether a backward pass has added to the gradients that were there."""
        self.is_added |= any(norm(seen) and _sketch_of(one()) != seen for one, seen in self.gradients)

    def see(self) -> None:
        """Remember the gradients as they are."""
        self.gradients = [(one, _sketch_of(one())) for one, _ in self.gradients]


class SteppingObserver:
    """An observer of gradients between backward passes and optimizer steps."""

    def __init__(self, notebook: Notebook, names: Names) -> None:
        self._notebook, self._names = notebook, names
        self._optimizers: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._made: list[tuple[weakref.ref[torch.Tensor], list[float]]] = []  # gradients of the last backward pass
        self._is_used, self._is_stepping = True, False  # whether a step came after it; whether one is running
        self._num_passes = 0
        self._cleared: Line | None = None  # where gradients were last cleared
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # name -> weight, its first elements

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        stack.callback(register_optimizer_step_post_hook(self._after_step).remove)
        replace(stack, torch.autograd, "backward", self._wrap_backward)
        replace(stack, torch.amp.GradScaler, "step", self._wrap_scaler)
        replace(stack, torch.optim.Optimizer, "__init__", self._wrap_init)
        for owner in (torch.optim.Optimizer, nn.Module):
            replace(stack, owner, "zero_grad", self._wrap_clear)

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._optimizers[optimizer] = _Watched()

        return __init__

    def _wrap_clear(self, clear: Callable[..., None]) -> Callable[..., None]:
        def cleared(owner: Any, *args: Any, **kwargs: Any) -> None:
            self._cleared = line_of(sys._getframe(1))
            clear(owner, *args, **kwargs)

        return cleared

    def _wrap_scaler(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_used = True  # also if it skips the step
            return step(scaler, *args, **kwargs)

        return stepped

    def _wrap_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        def observed(*args: Any, **kwargs: Any) -> None:
            seen: dict[int, list[float]] = {}
            with quietly():
                for watched in self._optimizers.values():
                    watched.look()
                if self._made and not self._is_used and not any(norm(_sketch_of(one())) for one, _ in self._made):
                    self._notebook.say("thrown away", self._cleared, num_passes=self._num_passes)
                seen = {id(one): _sketch_of(one) for one in self._followed()}
            backward(*args, **kwargs)
            with quietly():
                self._num_passes += 1
                for watched in self._optimizers.values():
                    watched.num_passes += 1
                    watched.look_after()
                    watched.see()
                now = [(one, _sketch_of(one)) for one in self._followed()]
                self._made = [(weakref.ref(one), of) for one, of in now if norm(of) and of != seen.get(id(one))]
                self._is_used = self._is_stepping  # as those of a closure are

        return observed

    def _followed(self) -> list[torch.Tensor]:
        """A few parameters of each optimizer that are trained."""
        return [one for optimizer in list(self._optimizers) for one in _smallest(optimizer)]

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with quietly():
            self._is_used = self._is_stepping = True
            watched = self._optimizers.setdefault(optimizer, _Watched())
            if watched.gradients and watched.num_passes:
                alive = [one for ref, _ in watched.gradients if (one := ref()) is not None]
                names = [self._names.of(one) or "" for one in alive]
                number = self._numbers.setdefault(optimizer, len(self._numbers))
                is_kept = watched.is_added and not watched.is_cleared
                self._notebook.say("kept gradients", optimizer=number, is_kept=is_kept, names=names)
            own = [(weakref.ref(one), of) for one in _smallest(optimizer) if norm(of := _sketch_of(one))]
            self._optimizers[optimizer] = _Watched(own)
            self._before = {}
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if parameter.dtype in _LOW and parameter.grad is not None and (name := self._names.of(parameter)):
                    self._before[name] = parameter, _elements_of(parameter).clone()

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with quietly():
            self._is_stepping = False
            self._optimizers[optimizer].see()  # a step may write into gradients
            kept = {}
            for name, (parameter, before) in self._before.items():
                if parameter.grad is None:
                    continue
                now, gradient = (_elements_of(one) for one in (parameter, parameter.grad))
                if bool((gradient != 0).any()):
                    same = (now == before) & (gradient != 0)
                    kept[name] = float(same.sum() / (gradient != 0).sum()), str(now.dtype).removeprefix("torch.")
            self._before = {}
            if kept:
                self._notebook.say("rounded", of=kept)


def _smallest(optimizer: Any) -> list[torch.Tensor]:
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return heapq.nsmallest(_MOST_WATCHED, trained, key=torch.Tensor.numel)


def _elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """The first elements of this rank's part of a tensor."""
    return getattr(tensor, "_local_tensor", tensor).detach().flatten()[:_MOST_COMPARED]


def _sketch_of(parameter: torch.Tensor | None) -> list[float]:
    """The sketch of a parameter's gradient; of none, that of zeros."""
    if parameter is None or parameter.grad is None:
        return [0.0]
    made = sketch(parameter.grad)
    return made if norm(made) else [0.0]
