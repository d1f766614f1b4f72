"""Observer of loss scaling, clipping and the schedule of learning rates."""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook, as_list
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.observers.training import TrainingObserver
from worldsize.source import Line, line_of

_SCHEDULES = (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler, CosineAnnealingWarmRestarts)  # own steps


class ScalingObserver:
    """An observer of gradients that are clipped while they are scaled, and of norms of shards."""

    def __init__(self, notebook: Notebook, names: Names, training: TrainingObserver) -> None:
        self._notebook, self._names, self._training = notebook, names, training
        self._is_scaled, self._is_stepping = False, False
        self._made: weakref.WeakKeyDictionary[Any, Line | None] = weakref.WeakKeyDictionary()
        self._schedules: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        scaler = torch.amp.GradScaler
        replace(stack, scaler, "scale", self._wrap_scale)
        for name in ("unscale_", "update"):
            replace(stack, scaler, name, self._wrap_unscale)
        for kind in _SCHEDULES:
            replace(stack, kind, "step", self._wrap_schedule)
        for kind in (LRScheduler, ReduceLROnPlateau):
            replace(stack, kind, "__init__", self._wrap_making)
        for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm"):
            replace(stack, torch.nn.utils, name, self._wrap_clip)
            replace(stack, torch.nn.utils.clip_grad, name, self._wrap_clip)

    def _wrap_scale(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        def scaled(scaler: Any, outputs: Any) -> Any:
            self._is_scaled = scaler.is_enabled()
            return scale(scaler, outputs)

        return scaled

    def _wrap_unscale(self, unscale: Callable[..., Any]) -> Callable[..., Any]:
        def unscaled(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_scaled = False
            self._training.forget()  # gradients change without a new version
            return unscale(scaler, *args, **kwargs)

        return unscaled

    def _wrap_making(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            init(scheduler, *args, **kwargs)
            self._made[scheduler] = line_of(sys._getframe(1))

        return __init__

    def _wrap_schedule(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            is_first = frame.f_code.co_name == "_initial_step"  # by its constructor
            if self._is_stepping or is_first:
                return step(scheduler, *args, **kwargs)
            self._is_stepping = True  # a schedule may be made of others
            try:
                with quietly():
                    line = line_of(frame)
                    length = _length_of(scheduler)
                    self._notebook.say(
                        "schedule",
                        line,
                        kind=type(scheduler).__name__,
                        made=as_list(self._made.get(scheduler)),
                        number=self._schedules.setdefault(scheduler, len(self._schedules)),
                        num_steps=self._training.num_steps_of(scheduler.optimizer),
                        is_by_library=line is None or line.filename != frame.f_code.co_filename,
                        is_past_end=length is not None and scheduler.last_epoch >= length,
                    )
                return step(scheduler, *args, **kwargs)
            finally:
                self._is_stepping = False

        return stepped

    def _wrap_clip(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        name, first = clip.__name__.lstrip("_"), next(iter(inspect.signature(clip).parameters))

        def clipped(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get(first)
            if isinstance(given, Iterator):  # which can be read once
                parameters = list(given)
                given = (one for one in parameters)
                args, kwargs = ((given, *args[1:]), kwargs) if args else (args, {**kwargs, first: given})
            else:
                parameters: list[torch.Tensor] = [given] if isinstance(given, torch.Tensor) else list(given or [])
            line = None
            with quietly():
                line = line_of(sys._getframe(1))
                if self._is_scaled and name != "get_total_norm":
                    self._notebook.say("clipped while scaled", line, function=name)
                self._note_shards(name, parameters, line)
            result = clip(*args, **kwargs)
            with quietly():
                is_plain = not any(hasattr(one, "placements") for one in parameters)
                if name == "clip_grad_norm_" and is_plain and isinstance(result, torch.Tensor):
                    most = float(args[1] if len(args) > 1 else kwargs["max_norm"])
                    names = [self._names.of(one) or "" for one in parameters]
                    self._notebook.say("clipped", line, norm=float(result), most=most, names=names)
            return result

        return clipped

    def _note_shards(self, function: str, parameters: list[torch.Tensor], line: Any) -> None:
        """Note plain tensors that are the local shards of DTensors."""
        shards = {}
        for name, parameter in self._names.parameters():
            for one in (parameter, parameter.grad):
                local = getattr(one, "_local_tensor", None)
                if local is not None and "shard" in name:
                    shards[local.data_ptr()] = name
        local = [
            shards[one.data_ptr()] for one in parameters if not hasattr(one, "placements") and one.data_ptr() in shards
        ]
        if local:
            self._notebook.say("norm of shards", line, function=function, names=local[:3])


def _length_of(schedule: Any) -> int | None:
    """The number of steps that a schedule was made for, as torch and transformers keep it."""
    functions = getattr(schedule, "lr_lambdas", None) or [None]
    kept = {**getattr(functions[0], "keywords", {}), **vars(schedule)}
    return next(
        (kept[name] for name in ("num_training_steps", "total_steps", "T_max", "total_iters") if name in kept), None
    )
