"""What a picture of a timeline shows: ranks and lanes, bubbles and exposed communication, and all shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from worldsize.draw._block_styles import in_order
from worldsize.event import COMMUNICATION, LOST, SPANS, WAIT, Event
from worldsize.intervals import Intervals, exposed, length_s, under_way, without, working
from worldsize.timeline import Timeline


class TimelineContent:
    """A run by rank and lane; shares are means over the ranks that have an event.

    A lane is a stream; `empty_lanes` are the lanes with work, which show bubbles. Waiting has no lane of its own next
    to these. The time after a rank's loss is not a bubble.
    """

    def __init__(self, run: Timeline, streams: Collection[str] | None = None) -> None:
        streams = _streams(run, streams)
        self.events = [event for event in run.events if event.stream in streams]
        if not self.events:
            raise ValueError("The timeline is empty: mark a step's parts with `with ws.span(name, kind=...)`.")
        self.of_rank: dict[int, list[Event]] = {rank: [] for rank in sorted({event.rank for event in self.events})}
        for event in self.events:
            self.of_rank[event.rank].append(event)
        self.name_of = {rank: run.name_of(rank) for rank in self.of_rank}
        self.start_s = min(event.start_s for event in self.events)
        self.end_s = max(event.end_s for event in self.events)
        self.bubbles = {rank: without(self._lived(rank), working(events)) for rank, events in self.of_rank.items()}
        self.exposed = {rank: exposed(events) for rank, events in self.of_rank.items()}
        self.kinds = in_order({event.kind for event in self.events})
        self.lanes, self.empty_lanes, self.lane_of = _lanes(self.events)

    def _lived(self, rank: int) -> Intervals:
        """The time until the rank was lost, if it was."""
        lost = under_way(event for event in self.of_rank[rank] if event.kind == LOST)
        return without([(self.start_s, self.end_s)], lost)

    @property
    def length_s(self) -> float:
        """Seconds from the first event's start to the last one's end."""
        return self.end_s - self.start_s

    @property
    def has_communication(self) -> bool:
        """True if any rank communicates."""
        return COMMUNICATION in self.kinds

    def share(self, stretches: Mapping[int, Intervals]) -> float:
        """Return the fraction of the ranks' time that these intervals take."""
        total_s = len(self.of_rank) * self.length_s
        return sum(map(length_s, stretches.values())) / total_s if total_s else 0.0

    def shares(self) -> dict[str, float]:
        """The share of each kind."""
        times: dict[str, dict[int, list[Event]]] = {kind: {} for kind in self.kinds}
        for event in self.events:
            times[event.kind].setdefault(event.rank, []).append(event)
        return {
            kind: self.share({rank: under_way(events) for rank, events in of_ranks.items()})
            for kind, of_ranks in times.items()
        }

    def describe(self) -> str:
        """Describe the bubble's share, and what it consists of."""
        bubble, bare = self.share(self.bubbles), self.share(self.exposed)
        if not self.has_communication:
            return f"bubble {bubble:.0%}"
        return f"bubble {bubble:.0%} (exposed communication {bare:.0%}, idle {max(0.0, bubble - bare):.0%})"

    def exposed_s(self) -> float:
        """Seconds of exposed communication, averaged over the ranks."""
        return sum(map(length_s, self.exposed.values())) / len(self.of_rank)


def _streams(run: Timeline, chosen: Collection[str] | None) -> Collection[str]:
    used = {event.stream for event in run.events}
    has_only_calls = SPANS in used and used <= {SPANS, COMMUNICATION, WAIT}
    return chosen if chosen is not None else {SPANS} if has_only_calls else used


def _lanes(events: Sequence[Event]) -> tuple[list[str], list[int], dict[str, int]]:
    """The names of the lanes from the top, the lanes that show bubbles, and the lane of each stream."""
    kinds: dict[str, set[str]] = {}
    for event in events:
        kinds.setdefault(event.stream, set()).add(event.kind)
    works = sorted(stream for stream, found in kinds.items() if found - {COMMUNICATION, WAIT, LOST})
    waits = sorted(stream for stream, found in kinds.items() if found <= {WAIT, LOST})
    others = sorted(kinds.keys() - {*works, *waits})
    names = [*(works or waits), *others]
    lane_of = {stream: number for number, stream in enumerate(names)}
    return names, list(range(len(works or waits))), {**lane_of, **(dict.fromkeys(waits, 0) if works else {})}
