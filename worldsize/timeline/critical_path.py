"""The chain of events that decides when a run ends, found by walking back from the end."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from worldsize.event import COMMUNICATION, LOST, WAIT, Event, channel, operations

_RELATIVE_TOLERANCE = 1e-9  # relative to the run's length: times this close count as equal


def critical_path(events: Iterable[Event]) -> list[Event]:
    """Find a chain of events, earliest first, each of which let the next start, up to the event that ends last.

    Work starts after its rank's previous event. A wait is replaced with the communication that it waited for.
    Communication starts when its last member arrives, or when the previous one on the same channel is done. The path
    has no gaps if everything is recorded, as in emulated runs.
    """
    lived = [event for event in events if event.kind != LOST]
    walk = _Walk(sorted(lived, key=lambda e: (e.end_s, e.is_work, -e.rank, e)))
    path, event = [], walk.last()
    while event:
        path.append(event)
        event = walk.before(event)
    return path[::-1]


class _Walk:
    """A walk back in time in one pass, which removes the events that it has passed from the stacks."""

    def __init__(self, events: Sequence[Event]) -> None:
        """Prepare the walk; the events come in order of their ends."""
        self._now_s = max((event.end_s for event in events), default=0.0)
        self._almost_s = _RELATIVE_TOLERANCE * (self._now_s - min((event.start_s for event in events), default=0.0))
        self._parts = {id(part): parts for parts in operations(events) for part in parts}
        self._passed: set[int] = set()
        self._channels: dict[tuple[int, object], list[Event]] = defaultdict(list)  # rank and channel -> communication
        self._waited: dict[object, list[Event]] = defaultdict(list)  # the same, keyed by what a wait records of it
        self._activity: dict[int, list[Event]] = defaultdict(list)  # rank -> its own work and waits
        self._wait_ends_s: dict[int, list[float]] = defaultdict(list)
        starts_s: dict[int, list[float]] = defaultdict(list)
        for event in events:
            if id(event) in self._parts:
                self._channels[event.rank, channel(event)].append(event)
                self._waited[_identity(event)].append(event)
                starts_s[event.rank].append(event.start_s)
            elif event.kind == WAIT:
                self._wait_ends_s[event.rank].append(event.end_s)
        for times_s in starts_s.values():
            times_s.sort()
        for event in events:
            if id(event) in self._parts or (event.is_work and event.end_s <= event.start_s):
                continue
            if event.kind == COMMUNICATION and _is_any_within(starts_s[event.rank], event):
                continue  # a span around communication that is recorded separately
            self._activity[event.rank].append(event)

    def last(self) -> Event | None:
        """Return the event that ends last; None if there are no events."""
        ends = [self._life(rank) for rank in sorted(self._activity)]
        ends += [self._top(self._channels[place]) for place in sorted(self._channels, key=lambda place: place[0])]
        return self._pass(self._latest(ends))

    def before(self, event: Event) -> Event | None:
        """Return the event that let this one start, or go on after its last wait; None if there is none."""
        if id(event) not in self._parts:
            self._back_to(max(event.start_s, self._last_wait_within_s(event)))
            return self._pass(self._life(event.rank))
        self._back_to(event.start_s)
        late = [one for one in self._parts[id(event)] if one.start_s >= event.start_s - self._almost_s]
        ranks = [event.rank, *(one.rank for one in late if one is not event)]
        ways = [self._top(self._channels[one.rank, channel(one)]) for one in [event, *late]]
        return self._pass(self._latest([*map(self._life, ranks), *ways]))

    def _back_to(self, time_s: float) -> None:
        self._now_s = min(self._now_s, time_s)

    def _life(self, rank: int) -> Event | None:
        """Return what kept this rank busy until now: its own work, or the communication that it waited for."""
        stack = self._activity[rank]
        while stack:
            event = self._behind(stack[-1])
            if stack[-1].end_s <= self._now_s + self._almost_s and id(event) not in self._passed:
                return event
            stack.pop()
        return None

    def _top(self, stack: list[Event]) -> Event | None:
        while stack and (stack[-1].end_s > self._now_s + self._almost_s or id(stack[-1]) in self._passed):
            stack.pop()
        return stack[-1] if stack else None

    def _behind(self, event: Event) -> Event:
        """Return the communication that a wait waited for; any other event unchanged."""
        known = self._waited.get(_identity(event)) if event.kind == WAIT else None
        place = bisect_right(known, event.end_s + self._almost_s, key=lambda e: e.end_s) if known else 0
        if known and place and known[place - 1].end_s >= event.start_s - self._almost_s:
            return known[place - 1]
        return event

    def _last_wait_within_s(self, event: Event) -> float:
        """Return the end of the last wait inside an event of work, such as a span around a whole step."""
        ends_s = self._wait_ends_s[event.rank] if event.is_work else []
        place = bisect_right(ends_s, event.end_s + self._almost_s)
        return ends_s[place - 1] if place else event.start_s

    def _latest(self, candidates: Sequence[Event | None]) -> Event | None:
        """Return the candidate that ends last, the first of any that tie."""
        best = None
        for one in candidates:
            if one and (best is None or one.end_s > best.end_s + self._almost_s):
                best = one
        return best

    def _pass(self, event: Event | None) -> Event | None:
        """Mark an event as passed and return it; for communication, return the event of the rank that arrived last."""
        if event is None:
            return None
        parts = self._parts.get(id(event), [event])
        self._passed.update(map(id, parts))
        came = [one for one in parts if one.start_s <= event.end_s]
        last_s = max((one.start_s for one in came), default=event.start_s)
        if last_s <= event.start_s + self._almost_s:
            return event
        return min((one for one in came if one.start_s == last_s), key=lambda one: one.rank)


def _identity(event: Event) -> object:
    return event.rank, event.name, event.group, event.sequence, event.peers


def _is_any_within(times_s: Sequence[float], event: Event) -> bool:
    place = bisect_right(times_s, event.end_s)
    return place > 0 and times_s[place - 1] >= event.start_s
