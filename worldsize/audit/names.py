"""Names of a rank's parameters, gradients and buffers, the same on every rank that runs the same program."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_MOST_SEARCHES = 50  # for modules that contain another, among all objects of the process
_MOST_KEPT = 8  # modules that are kept to the end of the program


class Names:
    """The modules, parameters and loose leaves that this rank has been seen to use."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # id of a parameter -> name
        self._alive: dict[int, weakref.ref[torch.Tensor]] = {}
        self._sharded: dict[str, weakref.ref[torch.Tensor]] = {}  # name -> DTensor
        self._gathered: dict[int, weakref.ref[torch.Tensor]] = {}
        self._roots: dict[int, tuple[str, weakref.ref[nn.Module]]] = {}
        self._outer: dict[int, tuple[weakref.ref[nn.Module], weakref.ref[nn.Module]]] = {}  # id -> module, its root
        self._kept: deque[nn.Module] = deque(maxlen=_MOST_KEPT)  # what a function made is needed after its end
        self._counts: defaultdict[str, int] = defaultdict(int)

    def learn(self, root: nn.Module) -> None:
        """Name a module's parameters, once for each; a module of DDP's is the module in it."""
        if isinstance(root, DistributedDataParallel):
            root = root.module
        root = self._root_of(root)
        prefix = self._prefix_of(root)
        if all(one is not root for one in self._kept):
            self._kept.append(root)
        for name, parameter in root.named_parameters():
            self.name(parameter, prefix + name)

    def name(self, parameter: torch.Tensor, name: str) -> None:
        """Give a parameter this name, unless it has one."""
        key = id(parameter)
        sharded = self._sharded.get(name)
        if not hasattr(parameter, "placements") and sharded is not None and sharded() is not None:
            self._gathered[key] = weakref.ref(parameter)  # for the time of a forward pass, by FSDP2
            return
        if hasattr(parameter, "placements"):
            self._sharded[name] = weakref.ref(parameter)
        if (alive := self._alive.get(key)) is None or alive() is not parameter:
            self._names[key], self._alive[key] = name, weakref.ref(parameter)

    def is_known(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter has a name."""
        alive = self._alive.get(id(parameter))
        return alive is not None and alive() is parameter

    def of(self, parameter: torch.Tensor) -> str | None:
        """A parameter's name; of a DTensor, with the shard that this rank has."""
        if not self.is_known(parameter):
            return None
        return self._names[id(parameter)] + _shard_of(parameter)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter that is still alive, with its name."""
        for key, alive in list(self._alive.items()):
            parameter = alive()
            if parameter is not None:
                yield self._names[key] + _shard_of(parameter), parameter

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every buffer of a floating dtype of the modules that were learnt."""
        for prefix, alive in self._roots.values():
            if (root := alive()) is not None:
                yield from ((prefix + n, b) for n, b in root.named_buffers() if b.is_floating_point() and b.numel())

    def modules(self) -> Iterator[tuple[str, str, nn.Module]]:
        """Every module in those that were learnt, with the prefix of the outermost one's names and its name there."""
        for prefix, alive in self._roots.values():
            if (root := alive()) is not None:
                yield from ((prefix, name, module) for name, module in root.named_modules())

    def find(self, tensor: Any) -> str:
        """What a tensor is to the program: "gradient of NAME", "weight NAME", or an empty text."""
        if not isinstance(tensor, torch.Tensor):
            return ""
        for name, parameter in self.parameters():
            for role, one in (("gradient of", parameter.grad), ("weight", parameter)):
                if one is not None and (one is tensor or _is_same_memory(one, tensor)):
                    return f"{role} {name}"
        return ""

    def sharded(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every DTensor that is a parameter, with its name in its module."""
        for name, alive in self._sharded.items():
            if (parameter := alive()) is not None:
                yield name.partition(".")[2], parameter

    def name_of_shard(self, tensor: torch.Tensor) -> str:
        """The name of a sharded weight of which a tensor is this rank's part, or its gradient's."""
        for alive in self._sharded.values():
            parameter = alive()
            for one in (parameter, None if parameter is None else parameter.grad):
                local = getattr(one, "_local_tensor", None)
                if parameter is not None and local is not None and _is_same_memory(local, tensor):
                    name = self.of(parameter) or ""
                    return name if "shard" in name else ""
        return ""

    def name_loose(self, parameters: list[torch.Tensor]) -> None:
        """Name parameters of no module that was learnt: as part of a module that uses them, or by a variable."""
        if not (unknown := [parameter for parameter in parameters if not self.is_known(parameter)]):
            return
        wanted = {id(parameter) for parameter in unknown}
        for module in [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]:
            if any(id(parameter) in wanted for parameter in module._parameters.values()):
                self.learn(_outermost(module))
        for parameter in unknown:
            gathered = self._gathered.get(id(parameter))
            if not self.is_known(parameter) and (gathered is None or gathered() is not parameter):
                self._counts["leaf"] += 1
                self.name(
                    parameter, _variable_of(parameter) or f"tensor {self._counts['leaf']} {list(parameter.shape)}"
                )

    def _root_of(self, module: nn.Module) -> nn.Module:
        """The outermost module around this one; a recomputation calls parts, and a search is slow: once for each."""
        if self._is_root(module):
            return module
        if (known := self._outer.get(id(module))) and known[0]() is module and (root := known[1]()) is not None:
            return root
        if len(self._roots) >= _MOST_SEARCHES:
            return module
        root = _outermost(module)
        self._outer.update({id(part): (weakref.ref(part), weakref.ref(root)) for part in root.modules()})
        return root

    def _is_root(self, module: nn.Module) -> bool:
        known = self._roots.get(id(module))
        return known is not None and known[1]() is module

    def _prefix_of(self, root: nn.Module) -> str:
        known = self._roots.get(id(root))
        if known is None or not self._is_root(root):
            kind = type(root).__name__
            self._counts[kind] += 1
            number = f"[{self._counts[kind]}]" if self._counts[kind] > 1 else ""
            prefix = f"{kind}{number}."
            known = self._roots[id(root)] = prefix, weakref.ref(root)
        return known[0]


def _outermost(module: nn.Module) -> nn.Module:
    """The module that contains this one and is contained in none, among those that are alive."""
    parents = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), nn.Module)
        and one is not module
        and any(part is module for part in one.__dict__.get("_modules", {}).values())
    ]
    parents = [one for one in parents if not isinstance(one, DistributedDataParallel)]
    return _outermost(parents[0]) if parents else module


def _variable_of(tensor: torch.Tensor) -> str:
    """The name of a variable of a running function that holds a tensor."""
    frame = sys._getframe(1)
    while frame is not None:
        if "/torch/" not in frame.f_code.co_filename and "/worldsize/audit/" not in frame.f_code.co_filename:
            for name, value in frame.f_locals.items():
                if value is tensor and not name.startswith("_"):
                    return name
        frame = frame.f_back
    return ""


def _shard_of(parameter: torch.Tensor) -> str:
    """Which part of a DTensor this rank has, in words; nothing of a plain or a replicated tensor."""
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return ""
    mesh: Any = parameter.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    where = mesh.get_coordinate() or ()
    parts = [
        f"{'shard' if placement.is_shard() else 'partial'} {where[i]} of {mesh.size(i)}"
        for i, placement in enumerate(placements)
        if not placement.is_replicate() and i < len(where)
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return one.data_ptr() == other.data_ptr() != 0 and one.numel() == other.numel()
    except RuntimeError:  # a DTensor has no storage of its own
        return False
