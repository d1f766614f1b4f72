"""A rank's record of itself while it runs: the blocks that it marks, and the times of its calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from worldsize.event import COMMUNICATION, WAIT
from worldsize.launch.protocol.call_log import ISSUED, Call
from worldsize.launch.protocol.events import SentEvent
from worldsize.launch.protocol.messages import MAX_EVENTS
from worldsize.message import MAX_WORD

_MAX_SPANS = 50_000  # only the last are kept; all are sent in one header
_MAX_EVENTS = 20_000  # only the last are kept for each source
_MAX_OPEN = 10_000  # calls that may wait for their `wait`
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
    """Keep an event, with its size, peers, group and sequence if it has them."""
    if source not in _kept:
        _kept[source] = deque(maxlen=_MAX_EVENTS)
    _kept[source].append(SentEvent(stream[:MAX_WORD], kind[:MAX_WORD], name[:MAX_WORD], start_s, end_s, *rest))


class Calls:
    """The times of calls of torch.distributed: communication from call to completion, and the waits in it.

    A call is complete when it returns; an asynchronous one, when its `wait` returns, if it is waited for.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[Any]] = {}  # a call's number -> its row
        self._members: dict[str, tuple[str, tuple[int, ...]]] = {}  # group as the call names it -> name and ranks

    def begin(self, call: Call, payload: Any, group: Any) -> None:
        """Record a call that is about to start."""
        if not _is_on or isinstance(group, int):  # torch's value for a group of which this rank is not a member
            return
        if len(self._open) >= _MAX_OPEN:
            self._close(next(iter(self._open)))
        name = _NAMES.get(call.op, call.op)
        if call.is_point_to_point:
            group_name, peers = "", () if call.peer is None else (call.peer,)
        else:
            group_name, peers = self._members.get(call.group) or self._look_up(call)
        tensors = payload if isinstance(payload, list | tuple) else () if payload is None else (payload,)
        size_bytes = sum(one.numel() * one.element_size() for one in tensors if hasattr(one, "numel"))
        size_bytes *= len(peers) if name in _OF_ALL else 1
        self._open[call.number] = [COMMUNICATION, COMMUNICATION, name, 0.0, 0.0, size_bytes, peers]
        self._open[call.number] += [group_name, call.sequence]

    def during(self, number: int, state: str, start_s: float, end_s: float) -> None:
        """Record a time spent in a call or in its `wait`, and the call's state afterwards."""
        row = self._open.get(number)
        if row is None:
            return
        row[3], row[4] = row[3] or start_s, end_s
        if state != ISSUED:
            self._close(number)
            keep("calls", WAIT, WAIT, row[2], start_s, *row[4:])

    def close(self) -> None:
        """Keep also the calls that were never waited for."""
        for number in list(self._open):
            self._close(number)

    def _close(self, number: int) -> None:
        keep("calls", *self._open.pop(number))

    def _look_up(self, call: Call) -> tuple[str, tuple[int, ...]]:
        import torch.distributed as dist

        if not dist.is_initialized():  # torch will report this
            return "", ()
        name = call.group or getattr(dist.group.WORLD, "group_name", "")
        ranks = tuple(range(dist.get_world_size())) if call.ranks is None else call.ranks
        self._members[call.group] = name, ranks = name[:MAX_WORD], ranks
        return name, ranks


calls = Calls()


def drain_events() -> Iterator[list[SentEvent]]:
    """Yield and drop the events so far, in batches for `Events`."""
    calls.close()
    events = [event for source in _kept.values() for event in source]
    _kept.clear()
    for start in range(0, len(events), MAX_EVENTS):
        yield events[start : start + MAX_EVENTS]
