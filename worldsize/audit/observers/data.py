"""Observer of data loading: the order of samplers, and the random draws of loaders' workers."""

from __future__ import annotations

import contextlib
import random
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from worldsize.audit.notes import Notebook, as_list
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import sketch
from worldsize.source import Line, line_of

_MOST_ROWS = 64  # of a data set of tensors that is compared between ranks
_NOT_THEIR_OWN = (random.__file__, DistributedSampler.__init__.__code__.co_filename)  # whose callers are noted
_DRAWS = (
    (torch, "randperm"),
    (random, "shuffle"),
    (random.Random, "shuffle"),
    (np.random, "permutation"),
    (np.random, "shuffle"),
    (np.random, "default_rng"),
)


class DataObserver:
    """An observer of the order that a sampler gives and of what a loader's workers share."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._made: weakref.WeakKeyDictionary[Any, Line | None] = (
            weakref.WeakKeyDictionary()
        )  # where loaders and samplers were

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        replace(stack, DistributedSampler, "__init__", self._wrap_init)
        replace(stack, DistributedSampler, "__iter__", self._wrap_sampler)
        replace(stack, BatchSampler, "__iter__", self._wrap_batches)
        replace(stack, DataLoader, "__init__", self._wrap_init)
        replace(stack, DataLoader, "__iter__", self._wrap_loader)
        for owner, name in _DRAWS:
            replace(stack, owner, name, self._wrap_draw)

    def _wrap_draw(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*args: Any, **kwargs: Any) -> Any:
            result = draw(*args, **kwargs)
            frame = sys._getframe(1)
            if frame.f_code.co_filename not in _NOT_THEIR_OWN:
                with quietly():
                    of: Any = result if result is not None else args[-1]  # shuffled where it is
                    seen: Any = of[:_MOST_ROWS] if hasattr(of, "__getitem__") else args
                    seen = seen.tolist() if hasattr(seen, "tolist") else seen
                    content = zlib.crc32(repr(seen).encode())
                    if args or kwargs:
                        self._notebook.say("order drawn", line_of(frame), function=draw.__name__, content=content)
            return result

        return drawn

    def _wrap_sampler(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterated(sampler: Any) -> Any:
            return watched(sampler, sampler.epoch, iterate(sampler))  # the order is drawn here

        def watched(sampler: Any, epoch: int, order: Iterator[Any]) -> Iterator[Any]:
            most = sampler.num_samples // 2 + 1
            for number, index in enumerate(order, start=1):
                if number == most:  # an iterator that only serves to look at a batch is no epoch
                    with quietly():
                        self._note_epoch(sampler, epoch)
                yield index

        return iterated

    def _wrap_batches(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterated(sampler: Any) -> Iterator[Any]:
            yield from iterate(sampler)
            self._notebook.say("epoch ended")

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
            is_evaluation=not torch.is_grad_enabled(),
            made=as_list(self._made.get(sampler)),
            seed=sampler.seed if sampler.shuffle else None,
            epoch=epoch if sampler.shuffle else None,
            num_replicas=sampler.num_replicas,
            content=_content_of(sampler.dataset),
        )
        used.append(epoch)

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            self._made[made] = line_of(sys._getframe(1))
            init(made, *args, **kwargs)

        return __init__

    def _wrap_loader(self, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterated(loader: Any) -> Any:
            with quietly():
                self._note_loader(loader)
            return iterate(loader)

        return iterated

    def _note_loader(self, loader: Any) -> None:
        self._notebook.say(
            "loader",
            self._made.get(loader),
            num_workers=loader.num_workers,
            has_init=loader.worker_init_fn is not None,
            generator=_numpy_generator_of(loader.dataset),
            is_stream=isinstance(loader.dataset, IterableDataset),
            is_training=torch.is_grad_enabled(),
            **(_reading_of(loader) if torch.is_grad_enabled() else {}),
        )


def _content_of(dataset: Any) -> list[Any]:
    """What can be seen of a data set's content, to be compared between ranks: its size, indices and first rows."""
    seen: list[Any] = [len(dataset)]
    while isinstance(dataset, Subset):
        seen.append(sketch(torch.as_tensor(list(dataset.indices))))
        dataset = dataset.dataset
    if isinstance(dataset, TensorDataset) and dataset.tensors:
        seen.append(sketch(dataset.tensors[0][:_MOST_ROWS]))
    return seen


def _reading_of(loader: Any) -> dict[str, Any]:
    """If a loader shuffles a whole data set: what identifies it, and the generator's state that gives its order."""
    sampler = loader.sampler
    if not isinstance(sampler, RandomSampler) or sampler.replacement or len(sampler) != len(loader.dataset):
        return {}
    generator = sampler.generator
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return {"whole": _identity_of(loader.dataset), "state": sketch(state)}


def _identity_of(dataset: Any) -> list[Any] | None:
    """What shows that two ranks' data sets are the same one: its size, and what it holds; None if nothing shows it."""
    held = vars(dataset) if hasattr(dataset, "__dict__") else {"": dataset}
    seen: list[Any] = []
    for name in sorted(held):
        value = held[name]
        for one in value if isinstance(value, tuple) and name == "tensors" else (value,):
            if isinstance(one, torch.Tensor | np.ndarray) and one.dtype != object and len(one.shape):
                seen.append(sketch(torch.as_tensor(one[:_MOST_ROWS])))
            elif isinstance(one, list) and one and isinstance(one[0], str | int | tuple):
                seen.append(zlib.crc32(repr(one[:_MOST_ROWS]).encode()))
    return [len(dataset), *seen] if seen else None


def _numpy_generator_of(dataset: Any) -> str:
    """The name of a generator of numpy's that a data set's code uses, which every forked worker copies."""
    own = {f"self.{name}": value for name, value in vars(dataset).items()} if hasattr(dataset, "__dict__") else {}
    code = getattr(type(dataset), "__getitem__", None)
    if isinstance(code, FunctionType):
        known = code.__globals__
        own |= {name: known[name] for name in code.__code__.co_names if name in known}
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    return next((name for name, value in own.items() if isinstance(value, generators)), "")
