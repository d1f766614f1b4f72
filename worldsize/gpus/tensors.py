"""Names and numbers of GPUs in torch's calls, which mean the CPU here."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.distributed.device_mesh import DeviceMesh
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.nn.parallel import DistributedDataParallel
from torch.utils._device import _device_constructors
from torch.utils.data import DataLoader

from worldsize.gpus import batch_norm
from worldsize.gpus.imports import when_imported

_MODULES = (torch, torch.fft, torch.nested)  # that have functions with a device
_LIKE = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
_METHODS = ("to", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "new_empty_strided")


def put_on_cpu() -> None:
    """Let this process treat the program's GPU tensors as CPU tensors."""
    for owner, name, changed in _CHANGED:
        if operator := _find_builtin(getattr(owner, name)):
            _register_builtin(changed, operator)  # for torch.jit it stays the operator that it wraps
        setattr(owner, name, changed)
    batch_norm.take_cpu_tensors()
    when_imported("torch.distributed.pipelining.stage", _place_stages_here)
    torch.serialization.register_package(0, lambda _storage: None, _restored_here)


def _place_stages_here(pipelining: Any) -> None:
    pipelining.PipelineStage.__init__ = _with_arguments(pipelining.PipelineStage, "__init__", device=here)


def here(value: Any) -> Any:
    """Replace a GPU, by name or number, with the CPU; return anything else as it is."""
    is_named = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    if type(value) is int or is_named:
        return "cpu" if isinstance(value, str) else torch.device("cpu")
    return value


def _with_device_here(function: Any) -> Any:
    """Wrap a function so that a GPU among its arguments becomes the CPU.

    By position only names and devices do: a number there is a size.
    """
    takes_number = function.__name__ in ("to", "to_empty")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = here(kwargs["device"])
        kwargs.pop("pin_memory", None)
        if takes_number:
            args = (*args[:1], *map(here, args[1:]))
        return function(*args, **kwargs)

    del call.__wrapped__  # torch.jit would look for the source of a function in C++
    return call


def _itself(itself: Any, *_args: Any, **_kwargs: Any) -> Any:
    return itself


class _Generator(torch.Generator):
    """A generator of random numbers; a GPU's is the CPU's."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return super().__new__(cls, here(device))  # pyright: ignore[reportCallIssue]


def _restored_here(storage: Any, location: str) -> Any:
    """Keep what `torch.load` is to put on a GPU on the CPU; None leaves it to torch."""
    return storage if location.partition(":")[0] == "cuda" else None


def _with_arguments(owner: type, method: str, **changes: Callable[[Any], Any]) -> Any:
    """Wrap a method so that these arguments are changed, given or by default."""
    function = inspect.getattr_static(owner, method)
    inner = function.__func__ if isinstance(function, classmethod) else function
    parameters = list(inspect.signature(inner).parameters.values())
    changed = [(place, one, changes[one.name]) for place, one in enumerate(parameters) if one.name in changes]

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        for place, parameter, change in changed:
            if place < len(args):
                args = (*args[:place], change(args[place]), *args[place + 1 :])
            elif parameter.name in kwargs or parameter.default is not parameter.empty:
                kwargs[parameter.name] = change(kwargs.get(parameter.name, parameter.default))
        return inner(*args, **kwargs)

    return call if inner is function else classmethod(call)


def _casting_as_on_a_gpu(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap autocast's constructor so that a GPU's autocast also acts on CPU tensors.

    A GPU's autocast uses float16 unless it is given a type.
    """

    @functools.wraps(init)
    def call(self: autocast, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype, *args, **kwargs)

    return call


def _changed() -> Iterator[tuple[Any, str, Any]]:
    """Yield the owner and name of all that takes a device, with what replaces it."""
    for function in _device_constructors():
        for module in _MODULES:
            name = function.__name__.removeprefix("fft_")
            if vars(module).get(name) is function:
                yield module, name, _with_device_here(function)
    for name in _LIKE:
        yield torch, f"{name}_like", _with_device_here(getattr(torch, f"{name}_like"))
    for name in _METHODS:
        yield torch.Tensor, name, _with_device_here(getattr(torch.Tensor, name))
    for name in ("to", "to_empty"):
        yield torch.nn.Module, name, _with_device_here(getattr(torch.nn.Module, name))
    for name in ("cuda", "pin_memory", "record_stream"):
        yield torch.Tensor, name, _itself
    yield torch.nn.Module, "cuda", _itself
    yield torch, "Generator", _Generator
    yield autocast, "__init__", _casting_as_on_a_gpu(autocast.__init__)
    for name in ("__init__", "from_group"):
        yield DeviceMesh, name, _with_arguments(DeviceMesh, name, device_type=here)
    yield torch.amp.GradScaler, "__init__", _with_arguments(torch.amp.GradScaler, "__init__", device=here)
    yield DataLoader, "__init__", _with_arguments(DataLoader, "__init__", pin_memory=lambda _: False)
    without = dict.fromkeys(("device_ids", "output_device"), lambda _: None)
    yield DistributedDataParallel, "__init__", _with_arguments(DistributedDataParallel, "__init__", **without)


_CHANGED = tuple(_changed())  # prepared once, and put in place in each process that is forked
