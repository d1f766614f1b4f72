"""A tracer that wraps torch.distributed's public functions and logs this rank's calls."""

from __future__ import annotations

import functools
import inspect
import json
import operator
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from worldsize.launch.protocol.call_log import BROKEN, DONE, ISSUED, NEW_GROUP, POINT_TO_POINT, WAITING, Call, CallLog
from worldsize.launch.worker import spans
from worldsize.memory.strides import has_gaps
from worldsize.message import MAX_WORD
from worldsize.source import Line, line_of

# each function, and the parameter with the tensor that it moves; functions that this torch lacks are skipped
_PAYLOADS = {
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "all_reduce": "tensor",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "barrier": None,
    "broadcast": "tensor",
    "gather": "tensor",
    "irecv": "tensor",
    "isend": "tensor",
    "monitored_barrier": None,
    NEW_GROUP: None,
    "recv": "tensor",
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_single": "output",
    "reduce_scatter_tensor": "output",
    "scatter": "tensor",
    "send": "tensor",
}
_ROOTED = ("broadcast", "gather", "reduce", "scatter")
_PEERS = ("dst", "group_dst", "src", "group_src")

_FOREVER_NS = 1 << 63
_PAUSE_S = 0.05
_noted_ns: deque[list[int]] = deque(maxlen=1000)  # start and end of the last logged calls
_installed: _Tracer | None = None
_refuses_gaps = False
listeners: list[Any] = []  # objects that hear of each logged call: `before`, `after` and `waited`


class _Inside(threading.local):
    """Whether this thread is inside a logged call."""

    yes = False


class _During:
    """The context in which a call or its wait runs; it marks the call as done unless the block sets a state."""

    __slots__ = ("_number", "_start_s", "_tracer", "_window", "state")

    def __init__(self, tracer: _Tracer, number: int) -> None:
        self._tracer, self._number, self.state = tracer, number, DONE
        self._window: list[int] | None = None  # the call's start and end

    def __enter__(self) -> _During:
        self._tracer._inside.yes = True
        if spans.is_on():
            self._window = [time.time_ns(), _FOREVER_NS]
            _noted_ns.append(self._window)
            self._start_s = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.state = BROKEN
        if self._window is not None:
            spans.calls.during(self._number, self.state, self._start_s, time.monotonic())
            self._window[1] = time.time_ns()
        self._tracer._inside.yes = False
        self._tracer._call_log.mark(self._number, self.state)


class _Tracer:
    """The state between calls: the count of calls and of each group's collectives, and the works not waited for."""

    def __init__(self, call_log: CallLog, work_type: type) -> None:
        self._call_log, self._work_type = call_log, work_type
        self._num_calls = 0
        self._num_collectives: dict[str, int] = {}  # group's name -> count
        self._issued: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._of_torch: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._inside = _Inside()

    def wrap(self, fn: Callable[..., Any], payload: str | None) -> Callable[..., Any]:
        """Wrap a function so that each call is logged when it starts and when it ends."""
        op, names = fn.__name__, list(inspect.signature(fn).parameters)

        @functools.wraps(fn)
        def noted(*args: Any, **kwargs: Any) -> Any:
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            # one of torch's own functions calls another, or the group's members make it by themselves
            if self._inside.yes or arguments.get("use_local_synchronization"):
                return fn(*args, **kwargs)
            number = self._note(op, arguments, payload)
            with _During(self, number) as call:
                if op not in POINT_TO_POINT and payload:
                    _note_gaps(op, arguments.get(payload))
                for listener in listeners:
                    listener.before(op, arguments, arguments.get(payload) if payload else None)
                work = fn(*args, **kwargs)
                for listener in listeners:
                    tensors = arguments.get(payload) if payload else None
                    listener.after(op, arguments, tensors, work if isinstance(work, self._work_type) else None)
                if isinstance(work, self._work_type):
                    self._issued[work] = number
                    call.state = ISSUED
            return work

        return noted

    def wrap_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a work's `wait` so that its start and its end are logged."""

        @functools.wraps(wait)
        def noted(work: Any, *args: Any, **kwargs: Any) -> Any:
            with self.waiting(work):
                return wait(work, *args, **kwargs)

        return noted

    # reports from an emulated rank's client, which also sees the calls that torch itself makes, such as DDP's
    # collectives

    def posting(self, op: str, tensors: Sequence[Any], group: Any, reduction: str, peer: int | None) -> int | None:
        """Log a call that torch itself is about to make and return its number; None if it is already logged."""
        if self._inside.yes:
            return None
        arguments = {"tensor": next(iter(tensors), None), "group": group, "op": reduction, "src": peer}
        number = self._note(op, arguments, "tensor")
        self._call_log.mark(number, ISSUED)
        return number

    def posted(self, mark: int | None, work: Any) -> None:
        """Store the work of a call that torch itself has made."""
        if mark is not None:
            self._issued[work] = self._of_torch[work] = mark

    def waiting(self, work: Any) -> AbstractContextManager[Any]:
        """Return the context in which a wait runs, which logs its start and its end."""
        for listener in listeners:
            listener.waited(work)
        number = None if self._inside.yes else self._issued.get(work)
        if number is None:
            return nullcontext()
        self._call_log.mark(number, WAITING)
        return _During(self, number)

    def changed(self, work: Any, state: str) -> None:
        """Log the state of a call that torch itself has made."""
        if self._of_torch and (number := self._of_torch.get(work)) is not None:
            self._call_log.mark(number, state)

    def _note(self, op: str, arguments: dict[str, Any], payload: str | None) -> int:
        number = self._num_calls
        self._num_calls += 1
        try:
            call = self._call(number, op, arguments, payload, line_of(sys._getframe(2)))
            self._call_log.write(call)
            if op == NEW_GROUP or _is_coalescing(arguments.get("group")):  # no data moves now
                return number
            spans.calls.begin(call, arguments.get(payload) if payload else None, arguments.get("group"))
        except Exception:  # torch itself reports the error
            self._call_log.write(Call(number, op))
        return number

    def _call(self, number: int, op: str, arguments: dict[str, Any], payload: str | None, line: Line | None) -> Call:
        group = arguments.get("group")
        name, ranks = (NEW_GROUP, None) if op == NEW_GROUP else _group_of(group)
        sequence = 0
        if op not in POINT_TO_POINT and _is_group(group):
            sequence = self._num_collectives[name] = self._num_collectives.get(name, 0) + 1
        tensor = arguments.get(payload) if payload else None
        if isinstance(tensor, list | tuple):
            tensor = tensor[0] if tensor else None
        return Call(
            number=number,
            op=op,
            ranks=ranks,
            sequence=sequence,
            dtype=str(getattr(tensor, "dtype", "")).removeprefix("torch.")[:MAX_WORD],
            shape=None if tensor is None else tuple(tensor.shape),
            peer=_peer_of(op, arguments, group, ranks),
            tag=operator.index(arguments.get("tag", 0)),
            reduction=_reduction_of(arguments)[:MAX_WORD],
            line=line,
            group=name[:MAX_WORD],
            members=_members_of(arguments)[:MAX_WORD] if op == NEW_GROUP else "",
        )


def _is_coalescing(group: Any) -> bool:
    """Whether torch only queues a group's calls now, and makes them together later."""
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    return (world.default_pg if group is None else group) in world.pg_coalesce_state


def _members_of(arguments: Mapping[str, Any]) -> str:
    """The ranks of the group that a call of `new_group` makes."""
    ranks = arguments.get("ranks")
    if ranks is None:
        return "all ranks"
    return str(sorted(map(int, ranks))) if isinstance(ranks, Collection) else ""  # an iterator is torch's to read


def _reduction_of(arguments: Mapping[str, Any]) -> str:
    """The name of a call's reduction; empty for a sum, and without an address for an unnamed `ReduceOp`."""
    if "op" not in arguments:
        return ""
    text = str(arguments["op"])
    return "another ReduceOp" if " object at " in text else text.rpartition(".")[2].removeprefix("SUM")


def install(call_log: CallLog) -> _Tracer:
    """Make a tracer and start to log this process's calls of torch.distributed."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    work = distributed_c10d.Work
    global _installed
    tracer = _installed = _Tracer(call_log, work)
    for name in _PAYLOADS:
        log_calls_of(name)
    work.wait = tracer.wrap_wait(work.wait)
    dist.destroy_process_group = distributed_c10d.destroy_process_group = _delayed(
        distributed_c10d.destroy_process_group
    )
    return tracer


def log_calls_of(name: str) -> None:
    """Log this process's calls of what is a function of torch.distributed now."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if _installed and (fn := getattr(distributed_c10d, name, None)):
        noted = _installed.wrap(fn, _PAYLOADS[name])
        setattr(distributed_c10d, name, noted)
        if hasattr(dist, name):
            setattr(dist, name, noted)


def _delayed(destroy: Callable[..., None]) -> Callable[..., None]:
    """Wrap `destroy` to pause first, so that Gloo's threads can report completion and release the last call's tensors.

    They need the interpreter's lock for that, which torch 2.13 holds while it waits for them to end.
    """

    @functools.wraps(destroy)
    def delayed(*args: Any, **kwargs: Any) -> None:
        spans.calls.settle()
        time.sleep(_PAUSE_S)
        destroy(*args, **kwargs)

    return delayed


def refuse_gaps() -> None:
    """Refuse collectives of tensors that are not contiguous, as NCCL does, rather than warn of them."""
    global _refuses_gaps
    _refuses_gaps = True


def _note_gaps(op: str, payload: Any) -> None:
    """Warn of a tensor that is not contiguous, or refuse it. Source: check_gpu_single_tensor in ProcessGroupNCCL.cpp.

    Raises:
        ValueError: there is one, and gaps are refused.
    """
    import torch

    for tensor in payload if isinstance(payload, list | tuple) else [payload]:
        if not isinstance(tensor, torch.Tensor) or not has_gaps(tensor):
            continue
        what = f"{op} got one of shape {tuple(tensor.shape)} with strides {tensor.stride()}"
        cure = "communicate tensor.contiguous(), and copy what it receives back"
        if _refuses_gaps:
            raise ValueError(f"Tensors must be contiguous: {what}, which NCCL refuses; {cure}")
        warnings.warn(f"{what}: NCCL refuses it, and Gloo may take it for a contiguous one; {cure}", stacklevel=3)


def is_inside() -> bool:
    """Whether this thread is inside a logged call."""
    return _installed is not None and _installed._inside.yes


def num_calls() -> int:
    """Return how many calls of torch.distributed this process has logged."""
    return 0 if _installed is None else _installed._num_calls


def native() -> dict[str, Any]:
    """Find the unfinished collective that torch itself has started, such as DDP's, and how many were started.

    Torch's count includes the logged calls. Source: torch's flight recorder, which on Gloo records collectives but not
    sends.
    """
    try:
        return _recorded()
    except Exception:  # a torch without the recorder, or with a different one: then only the rank's lines are known
        return {}


def num_native() -> int:
    """Return how many collectives torch itself has started, among those that torch's flight recorder still has."""
    try:
        entries = _entries()
    except Exception:
        return 0
    since_ns = _noted_ns[0][0] if len(_noted_ns) == _noted_ns.maxlen else 0
    return sum(entry["time_created_ns"] >= since_ns and not _is_noted(entry) for entry in entries)


def _entries() -> list[dict[str, Any]]:
    from torch._C import _distributed_c10d as c10d

    recorded = json.loads(c10d._dump_fr_trace_json())  # pyright: ignore[reportAttributeAccessIssue]
    return [entry for entry in recorded.get("entries", ()) if not entry["is_p2p"]]


def _recorded() -> dict[str, Any]:
    entries = _entries()
    started = max((entry["collective_seq_id"] for entry in entries if _is_of_all(entry)), default=0)
    pending = next((entry for entry in entries if not entry["retired"] and not _is_noted(entry)), None)
    return {"num_native": started, "native": _call_of(pending) if pending else None}


def _is_of_all(entry: dict[str, Any]) -> bool:
    return entry["process_group"][1] == "default_pg"


def _is_noted(entry: dict[str, Any]) -> bool:
    """Whether a logged call made this entry, because it was running when the entry was made."""
    return any(start_ns <= entry["time_created_ns"] <= end_ns for start_ns, end_ns in _noted_ns)


# C++'s names, which the recorder uses, in place of torch's
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_DTYPES |= {"long": "int64", "int": "int32", "short": "int16", "char": "int8", "byte": "uint8"}


def _call_of(entry: dict[str, Any]) -> Call:
    return Call(
        number=0,
        op="torch's own " + entry["profiling_name"].rpartition(":")[2],
        ranks=None if _is_of_all(entry) else (),  # torch does not report the group's ranks
        sequence=entry["collective_seq_id"],
        dtype=_DTYPES.get(kind := "".join(entry["input_dtypes"][:1]).lower(), kind),
        shape=tuple(next(iter(entry["input_sizes"]), ())),
    )


def _is_group(group: Any) -> bool:
    """Whether a collective can take place: this rank is a member and torch accepts the argument."""
    if group is None:
        return True
    import torch.distributed as dist

    return isinstance(group, dist.ProcessGroup)


def _group_of(group: Any) -> tuple[str, tuple[int, ...] | None]:
    """Return the group's name and its members; an empty name and None for the default group."""
    if group is None:
        return "", None
    import torch.distributed as dist

    world = dist.group.WORLD
    if group is world or not _is_group(group):
        return "", None
    name = group.group_name
    if world is not None and name == world.group_name:  # in a call that torch itself made
        return "", None
    if hasattr(group, "ranks"):  # an emulated group
        return name, getattr(group, "ranks", None)
    return name, tuple(dist.get_process_group_ranks(group))


def _peer_of(op: str, arguments: dict[str, Any], group: Any, ranks: tuple[int, ...] | None) -> int | None:
    """Return the global rank of the peer of a send or receive, or of the root of a collective that has one."""
    for name in _PEERS:
        if (place := arguments.get(name)) is not None:
            peer = operator.index(place)
            return ranks[peer] if name.startswith("group") and ranks is not None else peer
    if op in _ROOTED:  # torch's default
        return ranks[0] if ranks is not None else 0
    return None
