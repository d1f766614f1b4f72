"""Observer of saved and loaded states."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook
from worldsize.audit.observers.communicating import extent_of
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import sketch
from worldsize.source import line_of

_MOST_SKETCHED = 50  # parameters of a module that has loaded a state


class SavingObserver:
    """An observer of who saves what, and of what a state is loaded into."""

    def __init__(self, notebook: Notebook, names: Names) -> None:
        self._notebook, self._names = notebook, names

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        replace(stack, torch, "save", self._wrap_save)
        replace(stack, nn.Module, "load_state_dict", self._wrap_load)
        with contextlib.suppress(Exception):
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint import state_dict_loader

            replace(stack, dcp, "load", self._wrap_dcp_load)
            replace(stack, state_dict_loader, "load", self._wrap_dcp_load)

    def _wrap_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def saved(obj: Any, *args: Any, **kwargs: Any) -> Any:
            with quietly():
                tensors = [one for one in tree_leaves(obj) if isinstance(one, torch.Tensor)]
                shards = [one for one in tensors if any(not p.is_replicate() for p in getattr(one, "placements", ()))]
                shards += self._local_shards(obj)
                ranks = list(getattr(shards[0], "device_mesh").mesh.flatten().tolist()) if shards else []  # noqa: B009
                where = args[0] if args else kwargs.get("f")
                self._notebook.say(
                    "saved",
                    line_of(sys._getframe(1)),
                    num_tensors=len(tensors),
                    num_shards=len(shards),
                    shard_ranks=ranks,
                    overlapping=_overlapping(obj),
                    file=str(where) if isinstance(where, str | bytes) or hasattr(where, "__fspath__") else "",
                )
            return save(obj, *args, **kwargs)

        return saved

    def _local_shards(self, obj: Any) -> list[torch.Tensor]:
        """The parameters whose local shard is saved under their name as if it were the whole."""
        named = obj if isinstance(obj, dict) else {}
        for inner in [one for one in named.values() if isinstance(one, dict)]:
            named = {**inner, **named}
        return [
            parameter
            for name, parameter in self._names.sharded()
            if isinstance(one := named.get(name), torch.Tensor)
            and not hasattr(one, "placements")
            and one.shape == parameter.to_local().shape != parameter.shape  # pyright: ignore[reportAttributeAccessIssue]
        ]

    def _wrap_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(module, state_dict, *args, **kwargs)
            with quietly():
                missing, unexpected = list(result.missing_keys), list(result.unexpected_keys)
                about = {"missing": missing[:5], "unexpected": unexpected[:5], "num_missing": len(missing)}
                about |= {
                    "num_unexpected": len(unexpected),
                    "num_keys": len(state_dict),
                    "model": type(module).__name__,
                    "content": [sketch(one) for one in list(module.parameters())[:_MOST_SKETCHED]],
                }
                self._notebook.say("loaded", line_of(sys._getframe(1)), **about)
            return result

        return loaded

    def _wrap_dcp_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(state_dict, *args, **kwargs)
            with quietly():
                empty = [str(key) for key, value in state_dict.items() if _is_unfilled(value)]
                self._notebook.say("loaded by DCP", line_of(sys._getframe(1)), empty=empty)
            return result

        return loaded


def _overlapping(obj: Any) -> list[str]:
    """Two names of a state whose tensors overlap in memory, and are not the same tensor or views of one that is saved.

    Tied weights are the same tensor; what is copied into one buffer, one after the other, overlaps.
    """
    named = {str(name): one for name, one in obj.items()} if isinstance(obj, dict) else {}
    for name, inner in list(named.items()):
        if isinstance(inner, dict):
            named |= {f"{name}.{key}": one for key, one in inner.items()}
    plain = {name: one for name, one in named.items() if isinstance(one, torch.Tensor) and extent_of(one)}
    extents = sorted((extent_of(one) or (0, 0), name) for name, one in plain.items())
    for ((start, stop), name), ((other_start, other_stop), other) in itertools.pairwise(extents):
        if other_start < stop and (start, stop) != (other_start, other_stop):
            return [name, other]
    return []


def _is_unfilled(value: Any) -> bool:
    """Whether this is an optimizer's state dict without any state."""
    return isinstance(value, dict) and "param_groups" in value and not value.get("state")
