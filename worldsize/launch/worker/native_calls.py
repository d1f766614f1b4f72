"""Recording of the collectives that torch itself starts on real ranks, such as DDP's and DTensor's.

A group hands each call, from Python or from C++, to an operator of torch's library "c10d". Before torch's dispatcher
looks for an operator's kernel for a device, it looks for one under the key BackendSelect, where these operators have
none. `install` registers a function there that has `spans` record when the call starts and when it is complete, and
passes the call on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from worldsize.launch.protocol.call_log import Call
from worldsize.launch.worker import call_tracer, spans

# each operator of c10d, what torch.distributed calls it, and the operator's parameter with this rank's tensors
_OPERATORS = {
    "_allgather_base_": ("all_gather", "input_tensor"),
    "_reduce_scatter_base_": ("reduce_scatter", "output_tensor"),
    "allgather_": ("all_gather", "input_tensors"),
    "allgather_coalesced_": ("all_gather", "input_list"),
    "allgather_into_tensor_coalesced_": ("all_gather", "inputs"),
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors"),
    "alltoall_": ("all_to_all", "input_tensors"),
    "alltoall_base_": ("all_to_all", "input"),
    "barrier": ("barrier", None),
    "broadcast_": ("broadcast", "tensors"),
    "gather_": ("gather", "input_tensors"),
    "recv_": ("recv", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "reduce_scatter_": ("reduce_scatter", "output_tensors"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "outputs"),
    "scatter_": ("scatter", "output_tensors"),
    "send": ("send", "tensors"),
}
# collectives of several tensors, which emulated and paper runs make one after the other
_ONE_BY_ONE = ("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_")
_PEERS = ("dst", "src", "root_rank")  # parameters, counted within the group
_MOST_AWAITED = 10_000  # results that may wait for `wait_tensor`
_KEY = "BackendSelect"
_PASSED_ON = ("__torch_dispatch__", "__call__", "_fn", "inner")  # by which a dispatch mode passes an operator on
_BACKWARD = "_engine_run_backward"  # torch's function that runs a backward pass

_numbers = itertools.count(-1, -1)  # negative, so that they are nobody else's
_missed = itertools.count()
_awaited: dict[int, list[int]] = {}  # address of a result's data -> the calls that it needs
_libraries: list[Any] = []  # torch forgets the functions of a library that is collected


def install() -> None:
    """Start to record this process's collectives; without effect if this version of torch does not permit it."""
    import torch

    with contextlib.suppress(Exception):
        library = torch.library.Library("c10d", "IMPL")
        for operator in _OPERATORS:
            library.impl(operator, _recording(operator), _KEY, with_keyset=True)
        waits = torch.library.Library("_c10d_functional", "IMPL")
        waits.impl("wait_tensor", _noting_waits(), _KEY, with_keyset=True)
        _libraries.extend([library, waits])


def num_unseen() -> int:
    """Return how many collectives torch itself has started that could not be recorded; call it once."""
    return next(_missed) if _libraries else call_tracer.num_native()


def _recording(operator: str) -> Callable[..., Any]:
    """Make the function that records the calls of an operator."""
    import torch

    overload = getattr(torch.ops.c10d, operator).default
    names = [argument.name for argument in overload._schema.arguments]

    def recorded(keyset: Any, *args: Any) -> Any:
        if call_tracer.is_inside() or not spans.is_on():  # inside a call that the tracer records
            return overload.redispatch(keyset & _later_keys(), *args)
        numbers: list[int] = []
        try:
            numbers.extend(_begin(operator, dict(zip(names, args, strict=False))))
        except Exception:  # an observer never raises
            next(_missed)
        try:
            result = overload.redispatch(keyset & _later_keys(), *args)
        except BaseException:
            spans.calls.finish(numbers)
            raise
        with contextlib.suppress(Exception):
            _follow(numbers, args[0], result)
        return result

    return recorded


def _begin(operator: str, arguments: Mapping[str, Any]) -> Iterator[int]:
    """Record that a call starts, and yield the numbers of its collectives."""
    import torch.distributed as dist

    op, payload = _OPERATORS[operator]
    group = dist.ProcessGroup.unbox(arguments["process_group"])
    name, ranks = _group_of(group)
    peer = next((ranks[arguments[name]] for name in _PEERS if name in arguments), None)
    tensors = list(_flat(arguments[payload])) if payload else []
    for parts in [[tensor] for tensor in tensors] if operator in _ONE_BY_ONE else [tensors]:
        number = next(_numbers)
        spans.calls.begin(Call(number, op, ranks, peer=peer, group=name), parts, group)
        spans.calls.start(number)
        yield number


def _group_of(group: Any) -> tuple[str, tuple[int, ...]]:
    """Return the name of a group of torch's C++ and its ranks; of the default group, as in the log, an empty name."""
    from torch.distributed import distributed_c10d

    # looked up by name: what C++ has may be behind the group that torch's Python knows
    name, world = group.group_name, distributed_c10d._world
    of_groups = [ranks for known, ranks in world.pg_group_ranks.items() if getattr(known, "group_name", None) == name]
    is_default = world.default_pg is not None and name == world.default_pg.group_name
    return "" if is_default else name, tuple(of_groups[0])


def _follow(numbers: Sequence[int], result: Any, returned: Any) -> None:
    """Note how a call's end will be known: torch reports it, and the program may wait for the result."""
    import torch
    import torch.distributed as dist

    if _is_of_reducer():  # DDP waits at the end of backward, after the callbacks of others
        torch.autograd.Variable._execution_engine.queue_callback(lambda: spans.calls.await_end(numbers))
    work = dist.Work.unbox(returned[-1] if isinstance(returned, tuple) else returned)
    work.get_future().add_done_callback(lambda _future: spans.calls.finish(numbers))
    if len(_awaited) > _MOST_AWAITED:
        _awaited.clear()
    _awaited.update({tensor.data_ptr(): list(numbers) for tensor in _flat(result)})


def _is_of_reducer() -> bool:
    """Whether DDP's reducer makes the call: from C++ in a backward pass that is not itself part of one."""
    frame, num_passes = sys._getframe(3), 0  # below `_follow` and `recorded`
    while frame is not None and frame.f_code.co_name in _PASSED_ON:
        frame = frame.f_back
    is_direct = frame is not None and frame.f_code.co_name == _BACKWARD
    while frame is not None:
        num_passes += frame.f_code.co_name == _BACKWARD
        frame = frame.f_back
    return is_direct and num_passes == 1


def _noting_waits() -> Callable[..., Any]:
    """Make the function that records waits for the results of functional collectives, such as DTensor's."""
    import torch

    overload = torch.ops._c10d_functional.wait_tensor.default

    def waited(keyset: Any, tensor: Any) -> Any:
        with contextlib.suppress(Exception):
            spans.calls.await_end(_awaited.pop(tensor.data_ptr(), ()))
        return overload.redispatch(keyset & _later_keys(), tensor)

    return waited


@functools.cache
def _later_keys() -> Any:
    """The keys under which torch's dispatcher looks after `_KEY`."""
    import torch

    return torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))


def _flat(tensors: Any) -> Iterator[Any]:
    """Yield the tensors in lists of lists."""
    if isinstance(tensors, list | tuple):
        for tensor in tensors:
            yield from _flat(tensor)
    else:
        yield tensors
