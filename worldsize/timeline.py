"""Events on ranks and streams, in seconds: pure data that any drawer or check can read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, order=True)
class Event:
    """One thing that one rank did from `start_s` to `end_s`, both in seconds since the run began."""

    rank: int
    stream: str
    kind: str
    name: str
    start_s: float
    end_s: float
    size_bytes: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Timeline:
    """The events of one run, in order of rank, stream and time."""

    events: list[Event] = field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        """One more than the highest rank that has an event; 0 when there is none."""
        return max((event.rank for event in self.events), default=-1) + 1

    @property
    def end_s(self) -> float:
        """Seconds from the start of the run to the end of its last event."""
        return max((event.end_s for event in self.events), default=0.0)

    def time_s(self, rank: int, kind: str) -> float:
        """Seconds that `rank` spent in events of this kind."""
        return sum(event.duration_s for event in self.of(rank) if event.kind == kind)

    def of(self, rank: int) -> list[Event]:
        """The events of one rank, in order of time."""
        return sorted((event for event in self.events if event.rank == rank), key=lambda e: (e.start_s, e.end_s))

    def share(self, kind: str) -> float:
        """Fraction of all ranks' recorded time that is spent in events of this kind; 0 when nothing is recorded."""
        total_s = sum(event.duration_s for event in self.events)
        kind_s = sum(event.duration_s for event in self.events if event.kind == kind)
        return kind_s / total_s if total_s else 0.0

    def to_json(self) -> str:
        """The events as a JSON list, one object an event."""
        return json.dumps([asdict(event) for event in self.events])

    @staticmethod
    def from_json(text: str) -> Timeline:
        """The timeline that `to_json` wrote."""
        return Timeline.of_events(Event(**fields) for fields in json.loads(text))

    @staticmethod
    def of_events(events: Iterable[Event]) -> Timeline:
        """A timeline of these events, sorted."""
        return Timeline(sorted(events, key=lambda e: (e.rank, e.stream, e.start_s, e.end_s)))
