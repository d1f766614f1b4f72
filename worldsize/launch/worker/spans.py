"""A rank's record of itself while it runs: the blocks that it marks, and the times of its calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from worldsize import gloo
from worldsize.event import COMMUNICATION, WAIT
from worldsize.launch.protocol.call_log import ISSUED, Call
from worldsize.launch.protocol.events import SentEvent
from worldsize.launch.protocol.messages import MAX_EVENTS
from worldsize.message import MAX_WORD
from worldsize.pricing import OPS, ROUTED, bus_factor

_MAX_SPANS = 50_000  # only the last are kept; all are sent in one header
_MAX_EVENTS = 20_000  # only the last are kept for each source
_MAX_OPEN = 10_000  # calls that may wait for their `wait`
_PATIENCE_S = 1.0  # far longer than torch's threads take
_spans: deque[tuple[str, str, float, float]] = deque(maxlen=_MAX_SPANS)
_kept: dict[str, deque[SentEvent]] = {}  # source of events -> its events
_is_on = True
_virtual: Callable[[str, str], AbstractContextManager[None]] | None = None  # marks work in virtual time

_NAMES = {  # where they differ from torch's
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "all_to_all_single": "all_to_all",
    "irecv": "recv",
    "isend": "send",
    "monitored_barrier": "barrier",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}
_OF_MESH = "mesh_"  # prefix of torch's description of a group along a mesh dimension
# operations whose tensor is one rank's part of the counted size
_OF_ALL = ("all_gather", "gather", "reduce_scatter", "scatter")


@contextmanager
def span(name: str, kind: str = "compute") -> Iterator[None]:
    """Record the time that the block takes as an event of the run's timeline.

    Kinds that drawings distinguish: data, compute, forward, backward, recompute, weight (a backward that computes only
    gradients of weights), communication, update, offload, checkpoint. A GPU works on after the call that launches it:
    call `torch.cuda.synchronize()` at the end of the block if the span should cover the GPU's work.
    """
    start_s = time.monotonic()
    try:
        with _virtual(name, kind) if _virtual else nullcontext():
            yield
    finally:
        _spans.append((name[:MAX_WORD], kind[:MAX_WORD], start_s, time.monotonic()))


def drain() -> list[tuple[str, str, float, float]]:
    """Return and drop the spans so far: (name, kind, start, end), in seconds of the monotonic clock."""
    spans = list(_spans)
    _spans.clear()
    return spans


def stop(virtual: Callable[[str, str], AbstractContextManager[None]]) -> None:
    """Stop keeping events: in an emulated run they happen in virtual time, and `virtual` marks them."""
    global _is_on, _virtual
    _is_on, _virtual = False, virtual


def is_on() -> bool:
    """Whether events are kept."""
    return _is_on


def keep(source: str, stream: str, kind: str, name: str, start_s: float, end_s: float, *rest: Any) -> None:
    """Keep an event, with its size, peers, group, sequence and bytes sent if it has them."""
    _kept.setdefault(source, deque(maxlen=_MAX_EVENTS)).append(
        SentEvent(stream[:MAX_WORD], kind[:MAX_WORD], name[:MAX_WORD], start_s, end_s, *rest)
    )


class Calls:
    """The times of calls of torch.distributed: communication from call to completion, and the waits in it.

    A call of the program is complete when it returns; an asynchronous one, when its `wait` returns, if it is waited
    for. A call that torch itself makes has a negative number, and is complete when torch says so.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[Any]] = {}  # a call's number -> its row
        self._groups: dict[str, _CalledGroup] = {}  # by the name that the call has for it
        self._awaited_s: dict[int, float] = {}  # an open call's number -> since when the rank waits for its end

    def begin(self, call: Call, payload: Any, group: Any) -> None:
        """Record a call that is about to start."""
        if not _is_on or isinstance(group, int):  # torch's value for a group of which this rank is not a member
            return
        if len(self._open) >= _MAX_OPEN:
            self._close(next(iter(self._open)))
        name = _NAMES.get(call.op, call.op)
        group_name, sequence, backend = "", 0, ""
        if call.is_point_to_point:
            peers = () if call.peer is None else (call.peer,)
        else:
            of_call = self._groups.get(call.group)
            if of_call is None or call.ranks not in (None, of_call.ranks):  # torch reuses names of destroyed groups
                of_call = self._look_up(call, group)
            group_name, peers, backend = of_call.name, of_call.ranks, of_call.backend
            sequence = of_call.num_collectives = of_call.num_collectives + 1
        tensors = payload if isinstance(payload, list | tuple) else () if payload is None else (payload,)
        size_bytes = sum(one.numel() * one.element_size() for one in tensors if hasattr(one, "numel"))
        size_bytes *= len(peers) if name in _OF_ALL else 1
        sent_bytes = _sent_bytes(name, size_bytes, len(peers), call.peer, backend)
        self._open[call.number] = [COMMUNICATION, COMMUNICATION, name, 0.0, 0.0, size_bytes, peers]
        self._open[call.number] += [group_name, sequence, sent_bytes]

    def during(self, number: int, state: str, start_s: float, end_s: float) -> None:
        """Record a time spent in a call or in its `wait`, and the call's state afterwards."""
        row = self._open.get(number)
        if row is None:
            return
        row[3], row[4] = row[3] or start_s, end_s
        if state != ISSUED:
            self._close(number)
            keep("calls", WAIT, WAIT, row[2], start_s, *row[4:-1])

    def start(self, number: int) -> None:
        """Record that a call of torch itself starts."""
        if row := self._open.get(number):
            row[3] = row[4] = time.monotonic()

    def await_end(self, numbers: Iterable[int]) -> None:
        """Record that the rank waits from now on until these calls of torch itself are complete."""
        now_s = time.monotonic()
        self._awaited_s.update({number: now_s for number in numbers if number in self._open})

    def finish(self, numbers: Iterable[int]) -> None:
        """Record that these calls of torch itself are complete, unless that is recorded already."""
        now_s = time.monotonic()
        for number in numbers:
            if (row := self._open.pop(number, None)) is None:
                continue
            row[4] = now_s
            keep("calls", *row)
            if (start_s := self._awaited_s.pop(number, None)) is not None:
                keep("calls", WAIT, WAIT, row[2], start_s, *row[4:-1])

    def settle(self) -> None:
        """Wait a while for torch to report the ends of its calls, which it does in threads of its own."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while any(number < 0 for number in list(self._open)) and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def close(self) -> None:
        """Keep also the calls that were never waited for, and those whose completion torch has not reported yet."""
        self.finish([number for number in list(self._open) if number < 0])
        for number in list(self._open):
            self._close(number)

    def _close(self, number: int) -> None:
        if row := self._open.pop(number, None):  # torch's threads, too, take rows
            keep("calls", *row)

    def _look_up(self, call: Call, group: Any) -> _CalledGroup:
        import torch.distributed as dist

        if not dist.is_initialized():  # torch will report this
            return _CalledGroup("", (), "")
        group = dist.group.WORLD if group is None else group
        name = call.group or getattr(group, "group_name", "")
        if (description := getattr(group, "group_desc", "")).startswith(_OF_MESH):
            name = f"{description.removeprefix(_OF_MESH)} {name}"  # as in emulated runs
        ranks = tuple(range(dist.get_world_size())) if call.ranks is None else call.ranks
        try:
            backend = group.name()
        except Exception:  # a group of the program's own
            backend = ""
        known = self._groups[call.group] = _CalledGroup(name[:MAX_WORD], ranks, backend)
        return known


@dataclass
class _CalledGroup:
    """A group's name and ranks, the name of its backend, and how many collectives this rank has called in it."""

    name: str
    ranks: tuple[int, ...]
    backend: str
    num_collectives: int = 0


def _sent_bytes(op: str, size_bytes: int, num_ranks: int, peer: int | None, backend: str) -> float:
    """The bytes that this rank sends for a message or, according to its backend's algorithm, for a collective."""
    if op in ("send", "recv"):
        return size_bytes if op == "send" else 0
    if num_ranks < 2 or op not in OPS:
        return 0
    import torch.distributed as dist

    is_root = peer == dist.get_rank()
    if (op == "scatter" and not is_root) or (op == "gather" and is_root):
        return 0
    if backend.startswith("gloo") or op in ROUTED:
        return gloo.sent_bytes(op, size_bytes, num_ranks)
    return bus_factor(op, num_ranks) * size_bytes


calls = Calls()


def drain_events() -> Iterator[list[SentEvent]]:
    """Yield and drop the events so far, in batches for `Events`."""
    calls.close()
    events = [event for source in list(_kept.values()) for event in list(source)]
    _kept.clear()
    for start in range(0, len(events), MAX_EVENTS):
        yield events[start : start + MAX_EVENTS]
