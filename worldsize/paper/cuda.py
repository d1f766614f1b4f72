"""Programs on paper that use "cuda" or a GPU's number: tensors stay on the CPU; what needs a GPU is refused."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch.amp.autocast_mode import autocast
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

_WITH_STREAMS = ("current_stream", "default_stream", "set_stream")
_WITHOUT_EFFECT = ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats")
_OF_THE_ALLOCATOR = (
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "mem_get_info",
)
_NO_GPU = {  # torch's error without a GPU, and what to write instead
    "Cannot access accelerator": 'no GPU to number: use ws.device() as a rank\'s device, or torch.device("cuda", 0)',
    "Cannot get CUDA generator": "no generator of a GPU: make one with torch.Generator()",
    "FSDP needs a non-CPU accelerator": "no GPU for FullyShardedDataParallel: shard with fully_shard, which is FSDP2",
}


def stand_in() -> None:
    """Let this process treat the program's GPU tensors as CPU tensors, and answer or refuse `torch.cuda`."""
    torch.Tensor.to = _to_cpu(torch.Tensor.to)
    torch.nn.Module.to = _to_cpu(torch.nn.Module.to)
    torch.nn.Module.to_empty = _to_cpu(torch.nn.Module.to_empty)
    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
    autocast.__init__ = _casting_as_on_a_gpu(autocast.__init__)
    for init in ("__init__", "from_group"):
        setattr(DeviceMesh, init, _given("device_type", _here, getattr(DeviceMesh, init)))
    PipelineStage.__init__ = _given("device", _here, PipelineStage.__init__)
    init = _given("device_ids", _none, DistributedDataParallel.__init__)
    DistributedDataParallel.__init__ = _given("output_device", _none, init)
    for name in _WITHOUT_EFFECT:
        setattr(torch.cuda, name, _own(_none))
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = nullcontext
    torch.cuda._lazy_init = _refused
    for name in _WITH_STREAMS:
        setattr(torch.cuda, name, _own(_refused))
    for name in _OF_THE_ALLOCATOR:
        setattr(torch.cuda, name, _own(_refused_memory))
    for kind in (CPUOffloadPolicy, CPUOffload, torch.autograd.graph.save_on_cpu):
        kind.__init__ = _refused_offload
    for kind in (torch.cuda.Stream, torch.cuda.Event):
        kind.__new__ = _refused


class OnCpu(TorchFunctionMode):
    """The context in which a tensor that is made on a GPU by number is made on the CPU.

    A tensor made on a GPU by name is handled in `worldsize.paper.operator_log`, wherever it is made.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **(kwargs or {}))


@contextmanager
def saying_why() -> Iterator[None]:
    """Reword torch's errors about a missing GPU to say what to write instead.

    Raises:
        RuntimeError: the block raised it; reworded if it is one of these errors.
    """
    try:
        yield
    except RuntimeError as error:
        instead = next((instead for said, instead in _NO_GPU.items() if said in str(error)), None)
        if instead is None:
            raise
        raise RuntimeError(f"on paper there is {instead}").with_traceback(error.__traceback__) from None


def _refused(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("on paper there is no CUDA: leave out this call, and use ws.device() as a rank's device")


def _refused_offload(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("on paper a rank has one memory, its GPU's: keep nothing on the CPU")


def _refused_memory(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("on paper there is no CUDA memory to count: leave out this call, and read run.memory")


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function in a new object: torch.compile has a rule for each of torch's functions."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def _none(*_args: Any, **_kwargs: Any) -> None:
    return None


def _to_cpu(to: Any) -> Any:
    """Wrap `to` so that any GPU among its arguments becomes the CPU."""

    @functools.wraps(to)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        return to(*map(_here, args), **kwargs)

    return call


def _given(name: str, change: Callable[[Any], Any], function: Any) -> Any:
    """Wrap a function so that one argument is changed if it is given."""
    place = list(inspect.signature(function).parameters).index(name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = change(kwargs[name])
        elif place < len(args):
            args = (*args[:place], change(args[place]), *args[place + 1 :])
        return function(*args, **kwargs)

    return call


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


def _here(value: Any) -> Any:
    """Replace a GPU, by name or number, with the CPU; return anything else as it is."""
    is_named = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    if type(value) is int or is_named:
        return "cpu" if isinstance(value, str) else torch.device("cpu")
    return value
