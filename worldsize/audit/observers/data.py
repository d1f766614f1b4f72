"""Observer of data loading: the order of samplers, and the random draws of loaders' workers."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, DistributedSampler

from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.source import line_of


class DataObserver:
    """An observer of the order that a sampler gives and of what a loader's workers share."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        replace(stack, DistributedSampler, "__iter__", self._wrap_sampler)
        replace(stack, DataLoader, "__iter__", self._wrap_loader)

    def _wrap_sampler(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterated(sampler: Any) -> Any:
            epoch, most = sampler.epoch, sampler.num_samples // 2 + 1
            for number, index in enumerate(iterate(sampler), start=1):
                if number == most:  # an iterator that only serves to look at a batch is no epoch
                    with quietly():
                        self._note_epoch(sampler, epoch)
                yield index

        return iterated

    def _note_epoch(self, sampler: Any, epoch: int) -> None:
        used = sampler.__dict__.setdefault("_worldsize_epochs", [])
        num_samples = len(sampler.dataset)
        self._notebook.say(
            "sampler",
            line_of(sys._getframe(1)),
            is_repeated=bool(sampler.shuffle) and epoch in used and num_samples > 1,
            count=len(used) + 1,
            num_repeated=0 if sampler.drop_last else sampler.total_size - num_samples,
            num_samples=num_samples,
        )
        used.append(epoch)

    def _wrap_loader(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterated(loader: Any) -> Any:
            inner = iterate(loader)
            with quietly():
                self._note_loader(loader, inner)
            return inner

        return iterated

    def _note_loader(self, loader: Any, iterator: Iterator[Any]) -> None:
        self._notebook.say(
            "loader",
            line_of(sys._getframe(1)),
            num_workers=loader.num_workers,
            has_init=loader.worker_init_fn is not None,
            numpy_state=_digest(repr(np.random.get_state()).encode()),
            python_state=_digest(repr(random.getstate()).encode()),
            base_seed=getattr(iterator, "_base_seed", None),
            generator=_numpy_generator_of(loader.dataset),
            is_distributed=isinstance(loader.sampler, DistributedSampler),
        )


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _numpy_generator_of(dataset: Any) -> str:
    """The name of a generator of numpy's that a data set's code uses, which every forked worker copies."""
    own = {f"self.{name}": value for name, value in vars(dataset).items()} if hasattr(dataset, "__dict__") else {}
    code = getattr(type(dataset), "__getitem__", None)
    if isinstance(code, FunctionType):
        known = code.__globals__
        own |= {name: known[name] for name in code.__code__.co_names if name in known}
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    return next((name for name, value in own.items() if isinstance(value, generators)), "")
