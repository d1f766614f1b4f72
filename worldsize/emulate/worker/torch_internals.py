"""The undocumented parts of torch that emulation uses. Each has a test that fails when torch changes it."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor

_NAME = "named_backend"  # the attribute of a group with the name that the program gave
_BACKWARD = "_engine_run_backward"  # the Python function that calls backward in C++
_NATIVE = ("ProcessGroupGloo", "ProcessGroupMPI", "ProcessGroupNCCL", "ProcessGroupUCC", "ProcessGroupXCCL")

# the class of call handles that torch accepts and that can be subclassed in Python
Work: type[Any] = dist._Work  # pyright: ignore[reportPrivateImportUsage]


def num_in_native_waits() -> int:
    """Count the threads that are in C++'s backward or wait for a future in C++."""
    codes = [frame.f_code for frame in sys._current_frames().values()]
    return sum(code.co_name == _BACKWARD or code.co_filename == torch.futures.__file__ for code in codes)


def backward_number() -> int | None:
    """Return the number of the backward pass that runs in this thread, or None."""
    number = torch._C._current_graph_task_id()
    return None if number == -1 else number


def call_when_backward_ends(callback: Callable[[], None]) -> None:
    """Register a callback that autograd's engine calls at the end of the current backward, before it returns."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that holds the data: unwrapped inside `torch.func`'s `vjp` and `grad`, otherwise unchanged.

    The result of a functional collective is waited for.
    """
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.trigger_wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def lead_every_group_to(backend: str) -> None:
    """Give every process group of this process this backend, whatever backend the program names.

    `new_group`, `new_subgroups` and device meshes all go through one function of torch. The program gets the name that
    it gave from `get_backend`; torch itself, which asks in order to choose a device, gets this backend's.
    """
    make, get_backend = distributed_c10d._new_process_group_helper, distributed_c10d.get_backend
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_ours(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        named = str(bound.arguments["backend"])
        bound.arguments |= {"backend": dist.Backend(backend), "backend_options": None}
        group, *others = make(*bound.args, **bound.kwargs)
        is_named = named not in (backend, dist.Backend.UNDEFINED)
        if isinstance(group, dist.ProcessGroup):
            # without a name, a group has the default group's backend
            setattr(group, _NAME, named if is_named else getattr(dist.group.WORLD, _NAME, ""))
        return group, *others

    @functools.wraps(get_backend)
    def get_name(group: Any = None) -> Any:
        known = get_backend(group)  # which raises for a rank outside the group
        asking = sys._getframe(1).f_globals.get("__name__", "")
        is_ours = asking.partition(".")[0] in ("torch", "worldsize") and not asking.startswith("torch.testing.")
        return known if is_ours else dist.Backend(getattr(group or dist.group.WORLD, _NAME) or known)

    distributed_c10d._new_process_group_helper = make_ours
    dist.get_backend = distributed_c10d.get_backend = get_name


def register_hooks_in_python() -> None:
    """Replace DDP's built-in hooks in this process with Python hooks that compute the same.

    The C++ hooks expect a future's value to be a list of tensors, but a Python process group's is a Python object.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    hooks = {
        dist.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
        dist.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
    }

    def register(module: Any, kind: dist.BuiltinCommHookType) -> None:
        """Register the hook of this kind."""
        module.register_comm_hook(None, hooks[kind])

    DistributedDataParallel._register_builtin_comm_hook = register


def keep_works_of_forward_passes() -> None:
    """Keep the work that DDP gives its reducer in `join`: C++ calls its methods, which Python would have forgotten."""
    give = dist.Reducer._set_forward_pass_work_handle
    works: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    @functools.wraps(give)
    def give_and_keep(reducer: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        works[reducer] = work
        give(reducer, work, *args, **kwargs)

    dist.Reducer._set_forward_pass_work_handle = give_and_keep


def refuse_native_groups(error: Callable[[str], Exception]) -> Callable[..., Any]:
    """Make the constructors of torch's own process groups and RPC agents raise `error(name)` in this process.

    Covers every name of these classes and every subclass. Return the only remaining way to make a Gloo group.
    """
    gloo = c10d.ProcessGroupGloo
    init = gloo.__init__

    def make_gloo(*args: Any, **kwargs: Any) -> Any:
        made = gloo.__new__(gloo)
        init(made, *args, **kwargs)
        return made

    natives = [getattr(c10d, name, None) for name in _NATIVE]
    for native in filter(None, [*natives, _rpc_agent()]):
        native.__init__ = _raiser(error, native.__name__)
        if hasattr(native, "create"):  # a function makes MPI's groups
            native.create = staticmethod(native.__init__)
    return make_gloo


def _rpc_agent() -> Any:
    """Return the class behind `torch.distributed.rpc`; None if this torch lacks it."""
    return getattr(getattr(torch._C, "_distributed_rpc", None), "TensorPipeAgent", None)


def _raiser(error: Callable[[str], Exception], name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        """Refuse to make a group."""
        raise error(name)

    return refuse
