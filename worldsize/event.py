"""Events, each one rank's activity in an interval of time, and the operations that they form: pure data, no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

COMMUNICATION, WAIT, LOST = "communication", "wait", "lost"  # kinds that do not count as work
SPANS = "main"  # the stream of spans that a real rank marks itself


@dataclass(frozen=True, order=True)
class Event:
    """One activity of one rank from `start_s` to `end_s`, both in seconds since the run began.

    A transfer between GPU, host and storage has `size_bytes`. Communication has `size_bytes` too, the size of the
    message or of the collective's tensor as in nccl-tests; `sent_bytes`, the bytes that this rank sent for it;
    `peers`, the other rank of a message or all ranks of a collective; `group` and `sequence`, a collective's group and
    its number within the group. The name of a mesh dimension's group begins with the dimension: "tp 5". A message has a
    group only if it is along a mesh dimension.
    """

    rank: int
    stream: str
    kind: str
    name: str
    start_s: float
    end_s: float
    size_bytes: int = 0
    sent_bytes: float = 0
    peers: tuple[int, ...] = ()
    group: str = ""
    sequence: int = 0

    @property
    def duration_s(self) -> float:
        """The seconds from start to end."""
        return self.end_s - self.start_s

    @property
    def axis(self) -> str:
        """The mesh dimension along which it communicates; empty for other groups."""
        return axis_of(self.group)

    @property
    def is_work(self) -> bool:
        """Whether this is anything but communication, a wait, or the time after the rank's loss."""
        return self.kind not in (COMMUNICATION, WAIT, LOST)


def axis_of(group: str) -> str:
    """Return the mesh dimension in a group's name; empty for a group that is not along one."""
    return group.rpartition(" ")[0]


def operations(events: Iterable[Event]) -> list[list[Event]]:
    """Group communication with known peers into one list of events per operation: a message or a collective.

    The n-th send of a size from one rank to another matches the n-th receive; collectives match by name, group, members
    and sequence. An operation has at most one event per rank, a send before its receive.
    """
    known = [event for event in events if event.kind == COMMUNICATION and event.peers]
    found: dict[object, list[Event]] = {}
    counts: Counter[object] = Counter()
    for event in sorted(known, key=lambda e: (e.start_s, e.end_s, e)):
        place = channel(event)
        key = (place, event.size_bytes) if is_message(event) else (place, event.name, event.sequence)
        counts[key, event.rank, event.name] += 1
        found.setdefault((key, counts[key, event.rank, event.name]), []).append(event)
    return [sorted(parts, key=lambda e: (e.name != "send", e.rank)) for parts in found.values()]


def channel(event: Event) -> object:
    """Return what carries operations one at a time: a message's sender and receiver, or a collective's group."""
    if not is_message(event):
        return event.group, event.peers
    return (event.rank, *event.peers) if event.name == "send" else (*event.peers, event.rank)


def is_message(event: Event) -> bool:
    """Whether this is a send or a receive with one peer."""
    return event.name in ("send", "recv") and len(event.peers) == 1
