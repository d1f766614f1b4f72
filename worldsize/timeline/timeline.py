"""Events on ranks and streams, in seconds: pure data that any drawing or check can read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from worldsize.event import COMMUNICATION, Event
from worldsize.intervals import exposed, length_s, under_way, working
from worldsize.timeline.chrome_trace import chrome_trace
from worldsize.timeline.critical_path import critical_path
from worldsize.timeline.kineto import read_traces


@dataclass(frozen=True)
class Timeline:
    """The events of one run, in order of rank, stream and time.

    A rank **works** while an event other than communication or a wait is in progress and it does not wait, as it may
    inside a span. Time in which several events overlap always counts once.

    For a run on paper, `stands_for` is how many ranks of the job a recorded rank represents, including itself.
    `num_unseen` is how many collectives of a rank in a real run could not be recorded: then what the rank sent and the
    times of its communication are NaN.
    """

    events: list[Event] = field(default_factory=list[Event])
    stands_for: Mapping[int, int] = field(default_factory=dict[int, int])
    num_unseen: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def num_ranks(self) -> int:
        """One more than the highest rank that has an event; 0 if there are no events."""
        return max((event.rank for event in self.events), default=-1) + 1

    @property
    def end_s(self) -> float:
        """Seconds from the start of the run to the end of its last event."""
        return max((event.end_s for event in self.events), default=0.0)

    def name_of(self, rank: int) -> str:
        """Name the rank, with the number of ranks that it represents."""
        num_alike = self.stands_for.get(rank, 1)
        return f"rank {rank}, for {num_alike:,}" if num_alike > 1 else f"rank {rank}"

    def of(self, rank: int) -> list[Event]:
        """Return the events of one rank, in order of time."""
        return sorted((event for event in self.events if event.rank == rank), key=lambda e: (e.start_s, e.end_s))

    def time_s(self, rank: int, kind: str) -> float:
        """Return the seconds during which `rank` had an event of this kind in progress."""
        if kind == COMMUNICATION and self.num_unseen.get(rank):
            return math.nan
        return length_s(under_way(event for event in self.events if event.rank == rank and event.kind == kind))

    def share(self, kind: str) -> float:
        """Return the fraction of all ranks' recorded time with an event of this kind in progress; 0 without events."""
        if kind == COMMUNICATION and self.num_unseen:
            return math.nan
        of_ranks = self._by_rank().values()
        total_s = sum(length_s(under_way(events)) for events in of_ranks)
        kind_s = sum(length_s(under_way(e for e in events if e.kind == kind)) for events in of_ranks)
        return kind_s / total_s if total_s else 0.0

    def bytes_sent(self, rank: int) -> float:
        """Return the bytes that `rank` sent.

        A broadcast or a reduction to one rank, in which some ranks send less, counts as what the busiest rank sends. No
        backend reports what it sends for a collective, so it follows from the size and the algorithm: in a real run
        Gloo's, otherwise a ring's.
        """
        if self.num_unseen.get(rank):
            return math.nan
        return sum(e.sent_bytes for e in self.events if e.rank == rank and e.kind == COMMUNICATION)

    def bytes_sent_by_axis(self, rank: int) -> dict[str, float]:
        """Return the bytes that `rank` sent along each mesh dimension, by its name; "" is all other groups.

        They are counted as in `bytes_sent`. torch makes no separate group for a mesh dimension as large as the world.
        """
        sent: dict[str, float] = {"": math.nan} if self.num_unseen.get(rank) else {}
        for event in self.events:
            if event.rank == rank and event.kind == COMMUNICATION and event.sent_bytes:
                sent[event.axis] = sent.get(event.axis, 0) + event.sent_bytes
        return sent

    def exposed_communication_s(self, rank: int | None = None) -> float:
        """Return the seconds in which `rank` communicates and does not work; without `rank`, the mean over the ranks.

        Source: the term as in Rajbhandari et al., ZeRO-Infinity, SC 2021: communication not overlapped with compute.
        """
        times_s = self._communication_s(rank)
        return sum(exposed_s for _, exposed_s in times_s) / len(times_s) if times_s else 0.0

    def overlap_fraction(self, rank: int | None = None) -> float:
        """Return the fraction of communication time, of `rank` or of all, in which the rank works; 0 without any.

        An asynchronous call of a real run counts until its `wait` returns, though it may have finished earlier.
        """
        times_s = self._communication_s(rank)
        total_s, exposed_s = sum(total for total, _ in times_s), sum(exposed for _, exposed in times_s)
        if math.isnan(total_s):
            return math.nan
        return max(0.0, 1 - exposed_s / total_s) if total_s else 0.0

    def bubble_fraction(self, rank: int | None = None) -> float:
        """Return the fraction of the run without work, for `rank` or all of `range(num_ranks)`; 0 for an empty run.

        The run lasts from the start of its first event to the end of its last. For a pipeline of p equal stages and m
        micro-batches with free communication this is (p - 1) / (m + p - 1). Source: Huang et al., GPipe, NeurIPS 2019.
        """
        of_ranks = self._of_ranks(rank)
        total_s = len(of_ranks) * (self.end_s - min((event.start_s for event in self.events), default=0.0))
        work_s = sum(length_s(working(events)) for events in of_ranks)
        return max(0.0, 1 - work_s / total_s) if total_s else 0.0

    def critical_path(self) -> list[Event]:
        """Return the chain of events that decides the run's end, earliest first: each ended when the next could start.

        The last is the one that ends last. An event of work follows its rank's previous event; communication follows
        the previous event of its last member to arrive, or the previous communication on the same channel. Instead of a
        wait, the path contains the event that was waited for, if known. In an emulated run there are no gaps; in a real
        run a gap is time that was not recorded, and neighbours may overlap, because ranks see a collective end at
        different times.
        """
        return critical_path(self.events)

    def to_json(self) -> str:
        """Convert the events to a JSON list, one object per event."""
        return json.dumps([asdict(event) for event in self.events])

    @staticmethod
    def from_json(text: str) -> Timeline:
        """Read a timeline that `to_json` wrote."""
        return Timeline.of_events(Event(**fields | {"peers": tuple(fields["peers"])}) for fields in json.loads(text))

    @staticmethod
    def from_traces(paths: Iterable[str | Path]) -> Timeline:
        """Read traces of torch.profiler, one file for each rank: kernels of GPUs or, without GPUs, operators.

        Raises:
            ValueError: a file cannot be read as a trace, or two are of one rank.
        """
        traces = read_traces(paths)
        return Timeline.of_events(one.event for trace in traces for one in trace.activities)

    def to_chrome_trace(self) -> str:
        """Convert the events to JSON for ui.perfetto.dev or chrome://tracing: write it to a file and open it there."""
        return chrome_trace(self.events)

    @staticmethod
    def of_events(events: Iterable[Event]) -> Timeline:
        """Make a timeline of these events, sorted."""
        return Timeline(sorted(events, key=lambda e: (e.rank, e.stream, e.start_s, e.end_s)))

    def _by_rank(self) -> dict[int, list[Event]]:
        of_ranks: dict[int, list[Event]] = {}
        for event in self.events:
            of_ranks.setdefault(event.rank, []).append(event)
        return of_ranks

    def _of_ranks(self, rank: int | None) -> list[list[Event]]:
        """Return the events of `rank`, or of each of `range(num_ranks)`."""
        of_ranks = self._by_rank()
        return [of_ranks.get(one, []) for one in (range(self.num_ranks) if rank is None else [rank])]

    def _communication_s(self, rank: int | None) -> list[tuple[float, float]]:
        """Return the seconds of communication and of exposed communication, of `rank` or of each rank."""
        if self.num_unseen if rank is None else self.num_unseen.get(rank):
            return [(math.nan, math.nan)]
        return [
            (length_s(under_way(e for e in events if e.kind == COMMUNICATION)), length_s(exposed(events)))
            for events in self._of_ranks(rank)
        ]
