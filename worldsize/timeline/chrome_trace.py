"""Conversion of events to the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Sources: the Chromium project's Trace Event Format,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, and Perfetto's reader of it,
google/perfetto, src/trace_processor/importers/json.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from worldsize.event import COMMUNICATION, WAIT, Event, operations

_Place = dict[int, tuple[int, int]]  # id of an event -> process and thread


def chrome_trace(events: Iterable[Event]) -> str:
    """Convert events to JSON: one process per rank, one thread per stream, an arrow from each send to its receive.

    Events of a thread may nest but not overlap, so a stream with overlapping events continues in further threads,
    "communication 2" and so on. Operations with peers do not nest, because an arrow is bound to the innermost event.
    Every thread and process has a distinct number: readers take them for the operating system's.
    """
    events = sorted(events, key=lambda e: (e.rank, e.stream, e.start_s, -e.end_s, e))
    lanes = list(_lanes(events))
    threads: dict[tuple[int, str, int], int] = {}
    first_thread = max((event.rank for event in events), default=-1) + 2
    places: _Place = {}
    for event, lane in zip(events, lanes, strict=True):
        thread = threads.setdefault((event.rank, event.stream, lane), first_thread + len(threads))
        places[id(event)] = event.rank + 1, thread
    records = [*_names(threads), *(_slice(event, places) for event in events), *_arrows(events, places)]
    return json.dumps({"traceEvents": records, "displayTimeUnit": "ms"})


def _lanes(events: Sequence[Event]) -> Iterator[int]:
    """Yield for each event, in order of rank, stream and start, the lane of its stream in which it nests."""
    stream: tuple[int, str] | None = None
    lane, lanes, free = 0, [_TraceThread()], []
    for event in events:
        if stream != (event.rank, event.stream):
            stream = event.rank, event.stream
            lane, lanes, free = 0, [_TraceThread()], []
        start_ns, end_ns = _span_ns(event)
        if not lanes[lane].takes(start_ns, end_ns, nested=not event.peers):
            while free and free[0][0] != lanes[free[0][1]].free_ns:  # it has been used since
                heapq.heappop(free)
            lane = heapq.heappop(free)[1] if free and free[0][0] <= start_ns else len(lanes)
            lanes += [_TraceThread()] if lane == len(lanes) else []
            lanes[lane].takes(start_ns, end_ns, nested=False)
        heapq.heappush(free, (lanes[lane].free_ns, lane))
        yield lane


@dataclass
class _TraceThread:
    """A thread: when its last event ends, and when each of its open events ends, in ns."""

    free_ns: int = 0
    open_ns: list[int] = field(default_factory=list)

    def takes(self, start_ns: int, end_ns: int, nested: bool) -> bool:
        """Add the event, and return True, unless an open event ends before it or it must not be nested."""
        while self.open_ns and self.open_ns[-1] <= start_ns:
            self.open_ns.pop()
        if self.open_ns and (not nested or self.open_ns[-1] < end_ns):
            return False
        self.open_ns.append(end_ns)
        self.free_ns = self.open_ns[0]
        return True


def _names(threads: dict[tuple[int, str, int], int]) -> Iterator[dict[str, Any]]:
    for rank in dict.fromkeys(rank for rank, _, _ in threads):
        yield {"ph": "M", "name": "process_name", "pid": rank + 1, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank + 1, "args": {"sort_index": rank}}
    for (rank, stream, lane), thread in threads.items():
        name = f"{stream} {lane + 1}" if lane else stream
        yield {"ph": "M", "name": "thread_name", "pid": rank + 1, "tid": thread, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": rank + 1, "tid": thread, "args": {"sort_index": thread}}


def _slice(event: Event, places: _Place) -> dict[str, Any]:
    pid, tid = places[id(event)]
    start_ns, end_ns = _span_ns(event)
    times = {"ts": _microseconds(start_ns), "dur": _microseconds(end_ns - start_ns)}
    record = {"ph": "X", "name": event.name or event.kind, "cat": event.kind, "pid": pid, "tid": tid, **times}
    if event.kind in (COMMUNICATION, WAIT):
        what = {"size_bytes": event.size_bytes, "sent_bytes": event.sent_bytes, "peers": list(event.peers)}
        record["args"] = what | {"group": event.group, "sequence": event.sequence}
    return record


def _arrows(events: Sequence[Event], places: _Place) -> Iterator[dict[str, Any]]:
    """Yield an arrow from each send to its receive. They follow the events, because an arrow binds to an open event.

    Perfetto itself reverses an arrow whose receive was posted before its send.
    """
    pairs = [parts for parts in operations(events) if len(parts) == 2 and parts[0].name == "send"]
    for number, (send, receive) in enumerate(pairs, start=1):
        start_ns = _span_ns(send)[0]
        end_ns = max(start_ns, _span_ns(receive)[0])
        if start_ns < _span_ns(send)[1] and end_ns < _span_ns(receive)[1]:
            flow = {"name": "message", "cat": "message", "id": number}
            yield {"ph": "s", **flow, "ts": _microseconds(start_ns), **_at(places, send)}
            yield {"ph": "f", "bp": "e", **flow, "ts": _microseconds(end_ns), **_at(places, receive)}


def _at(places: _Place, event: Event) -> dict[str, int]:
    pid, tid = places[id(event)]
    return {"pid": pid, "tid": tid}


def _span_ns(event: Event) -> tuple[int, int]:
    start_ns = round(event.start_s * 1e9)
    return start_ns, max(start_ns, round(event.end_s * 1e9))


def _microseconds(time_ns: int) -> float:
    """Convert to microseconds such that truncating `1000 * value`, as Perfetto does, gives the same nanoseconds."""
    value = time_ns / 1000
    return value if int(value * 1000) == time_ns else math.nextafter(value, math.inf)
