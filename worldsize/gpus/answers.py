"""Answers of `torch.cuda` and `torch.accelerator` to the program, as the described GPUs would give them.

torch's own code, which asks in order to call CUDA, keeps torch's answers.
"""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from worldsize.hardware import Gpu

_CAPABILITIES = {  # NVIDIA, CUDA GPUs and their compute capability, read 2026; AMD: gfx942 as PyTorch reports it
    "volta": (7, 0),
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
    "cdna3": (9, 4),
}
_NCCL_VERSION = (2, 28, 3)  # whose tuner `worldsize.pricing` follows
_WITH_OWN_ANSWERS = ("torch", "worldsize")
_WITHOUT_EFFECT = ("init", "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_sync_debug_mode")
_GRAPHS = ("CUDAGraph", "graph", "graph_pool_handle", "make_graphed_callables")
_MARKS = ("mark", "range_end", "range_pop", "range_push", "range_start")  # of torch.cuda.nvtx


@dataclass
class Gpus:
    """The GPUs of a rank's node: their kind, how many there are, and the program's current one.

    `note_count` is called when the program asks how many GPUs there are, `note_kind` when it asks of what kind.
    """

    gpu: Gpu
    num_local: int
    current: int
    note_count: Callable[[], None] = lambda: None
    note_kind: Callable[[], None] = lambda: None

    def count(self) -> int:
        """Return the number of GPUs of the node."""
        self.note_count()
        return self.num_local

    def set_current(self, device: Any) -> None:
        """Make a GPU the current one; a negative number changes nothing.

        Raises:
            RuntimeError: the node has no GPU of this number.
        """
        number = self.number(device)
        self.current = self.current if number < 0 else number

    def number(self, device: Any = None) -> int:
        """Return the number of a GPU that may be given by name, by number, or not at all.

        Raises:
            RuntimeError: the node has no GPU of this number.
        """
        if device is None:
            return self.current
        number = device if isinstance(device, int) else torch.device(device).index
        number = self.current if number is None else number
        if number >= self.num_local:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: there is no cuda:{number} on this node, whose "
                f"{self.num_local} GPUs are cuda:0 to cuda:{self.num_local - 1}; use LOCAL_RANK to choose one"
            )
        return number

    @contextmanager
    def chosen(self, device: Any) -> Iterator[None]:
        """Make a GPU the current one inside the block."""
        before = self.current
        self.set_current(device)
        try:
            yield
        finally:
            self.current = before

    def total_bytes(self) -> int:
        """Return the bytes of the GPU's memory."""
        self.note_kind()
        return self.gpu.memory_bytes

    def capability(self, device: Any = None) -> tuple[int, int]:
        """Return the GPU's compute capability."""
        return self._kind(device)["major"], self._kind(device)["minor"]

    def properties(self, device: Any = None) -> SimpleNamespace:
        """Return what torch's `get_device_properties` has of these: name, memory in bytes, compute capability."""
        return SimpleNamespace(**self._kind(device))

    def name(self, device: Any = None) -> str:
        """Return the GPU's name."""
        return self._kind(device)["name"]

    def _kind(self, device: Any) -> dict[str, Any]:
        self.number(device)
        major, minor = _CAPABILITIES.get(self.gpu.architecture, (0, 0))
        return {"name": self.gpu.name, "major": major, "minor": minor, "total_memory": self.total_bytes()}


def answer(gpus: Gpus, memory: Mapping[str, Callable[..., Any]], streams: Mapping[str, Any]) -> None:
    """Answer the program in this process: about its GPUs, their memory, and their streams and events.

    `memory` and `streams` map names of `torch.cuda` to what has these names here.
    """
    common = {"is_available": lambda: True, "device_count": gpus.count, **memory}
    cuda = {
        **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
        **dict.fromkeys(_GRAPHS, _refuse_graph),
        **common,
        **streams,
        "can_device_access_peer": lambda *_: True,
        "current_device": gpus.number,
        "device": gpus.chosen,
        "get_arch_list": lambda: ["sm_{}{}".format(*gpus.capability())],
        "get_device_capability": gpus.capability,
        "get_device_name": gpus.name,
        "get_device_properties": gpus.properties,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * gpus.num_local,
        "is_bf16_supported": lambda *_, **__: gpus.gpu.architecture != "volta",
        "is_current_stream_capturing": lambda: False,
        "is_initialized": lambda: True,
        "set_device": gpus.set_current,
        "set_per_process_memory_fraction": _nothing,
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[gpus.current]),
    }
    accelerator = {
        **common,
        **{name: streams[name] for name in ("current_stream", "set_stream", "synchronize") if name in streams},
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_idx": gpus.number,
        "current_device_index": gpus.number,
        "device_index": gpus.chosen,
        "get_memory_info": memory["mem_get_info"],
        "set_device_idx": gpus.set_current,
        "set_device_index": gpus.set_current,
    }
    of_modules = (
        (torch.cuda, cuda),
        (torch.accelerator, accelerator),
        (torch.cuda.nvtx, dict.fromkeys(_MARKS, _nothing)),
        (torch.cuda.nccl, {"version": lambda: _NCCL_VERSION}),
        (dist, {"is_nccl_available": lambda: True}),
    )
    for module, answers in of_modules:
        for name, own in answers.items():
            setattr(module, name, _for_program(getattr(module, name, own), own))
    torch.cuda._lazy_init = _refuse


def _for_program(torchs: Any, own: Any) -> Any:
    """Make a function that answers the program by `own` and torch's code by torch's function.

    A class is replaced with a class, since programs name it in annotations.
    """
    if isinstance(own, type):
        return own
    if isinstance(torchs, type):
        return type(torchs.__name__, (), {"__new__": lambda _cls, *args, **kwargs: own(*args, **kwargs)})

    @functools.wraps(torchs)
    def call(*args: Any, **kwargs: Any) -> Any:
        asking = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        return (torchs if asking in _WITH_OWN_ANSWERS else own)(*args, **kwargs)

    return call


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "this needs a real GPU, and on an emulated cluster and on paper CPU tensors stand for its tensors: leave it out"
    )


def _refuse_graph(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("CUDA graphs are not emulated: run the model without them; kernels start without delay here")
