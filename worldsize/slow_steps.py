"""Why the steps of a job of your own are slow, from traces of torch.profiler: where each rank's time goes, what binds.

Each moment of a rank counts once: as compute if a kernel runs, otherwise as communication, as a copy, or as idle.
Communication that no compute hides is split by the other ranks' traces into the wait for the last rank to start and
the transfer. Idle time is the host's if the host launched what came next only after the GPU had gone idle.
"""

from __future__ import annotations

import bisect
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from worldsize.event import COMMUNICATION, Event
from worldsize.intervals import Intervals, length_s, under_way, without
from worldsize.timeline.kineto import COPY, OPERATOR, PYTHON, RANGE, RUNTIME, SLACK_S, HostCall, RankTrace, read_traces
from worldsize.units import format_bytes, format_ranks, format_time_s, number_of, significant

COMPUTE, TRANSFER, LATE, COPIES = "compute", "transfer", "wait for a later rank", "copy"
INPUT, SYNC, LAUNCH, GAPS = "idle: next batch", "idle: after a synchronization", "idle: launches", "idle: other"
HOST = "idle: Python"  # of a trace without a GPU
HIDDEN = "communication, hidden"
ALONE = "communication, unmatched"  # which no other trace has, so that it is not known who waited
_ROWS = (COMPUTE, TRANSFER, LATE, ALONE, COPIES, INPUT, SYNC, LAUNCH, GAPS, HOST)
_Key = TypeVar("_Key")
_MOST_COLUMNS, _MOST_LINES, _WIDTH = 8, 3, 80
_NESTED = 500  # calls that are looked at for those that a time lies in
_LINE = re.compile(r"(?!torch/|<|nn\.Module).*\.py\(\d+\): ")  # of a program, as python_function has it
_BINDS = 0.1  # of the step: less is left to compute
_LOADING = ("enumerate(DataLoader)", "_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessing")
_CURES = {
    COMPUTE: "run fewer FLOPs or faster ones: bfloat16, larger matmuls, fused kernels, less recomputation.",
    TRANSFER: "send less or hide it: overlap with backward, larger buckets, another mesh, a faster link.",
    LATE: "make the ranks' work equal, or fix the slow one: its input, its clock, its share of tokens or layers.",
    ALONE: "give the traces of all ranks: only they tell a slow link from a late rank (send and recv are not matched).",
    COPIES: "pin the host's memory, copy with `non_blocking=True` on a stream of its own, keep data on the GPU.",
    INPUT: "load ahead: more workers, `prefetch_factor`, `pin_memory`, `persistent_workers`, less work per sample.",
    SYNC: "take `.item()`, `.cpu()`, `print(loss)` and checks for NaN out of the step, or do them every 100 steps.",
    LAUNCH: "launch less: `torch.compile` (mode `reduce-overhead` for CUDA graphs), fused optimizers, larger batches.",
    HOST: "look at the Python code between the operators: `python -m cProfile`, or py-spy on the running rank.",
    GAPS: "look at the gaps in Perfetto: what came next waited for another stream, or its launch is not recorded.",
}


@dataclass(frozen=True)
class Account:
    """Where a rank's time goes, in seconds of the whole trace."""

    rank: int
    span_s: float
    num_steps: int
    seconds: Mapping[str, float]
    hidden_s: float
    operators: Mapping[tuple[str, str], float]
    """Idle time by its kind and by the host's call in it."""

    def per_step_s(self, kind: str) -> float:
        """The seconds of a step."""
        return self.seconds.get(kind, 0.0) / self.num_steps

    @property
    def step_s(self) -> float:
        """The seconds of a step in which anything was recorded."""
        return self.span_s / self.num_steps


def explain_steps(paths: Iterable[str | Path]) -> str:
    """Return the report on the steps in these traces, one for each rank.

    Raises:
        ValueError: a file is not a whole trace of torch.profiler, or two are of one rank.
    """
    traces = read_traces(paths)
    met_s, last_of = _matched(traces)
    accounts = [_account(trace, met_s, len(traces) > 1) for trace in traces]
    middle = {kind: statistics.fmean(one.per_step_s(kind) for one in accounts) for kind in _ROWS}
    step_s = statistics.fmean(one.step_s for one in accounts)
    others = max((kind for kind in _ROWS if kind != COMPUTE), key=lambda kind: middle[kind])
    binds = others if middle[others] >= _BINDS * step_s else COMPUTE
    share = f"{middle[binds] / step_s:.0%} of the step"
    lines = [
        f"{_headline(traces[0], step_s)} {_of_ranks(traces)}.",
        "",
        *_table(accounts),
        "",
        f"What binds: {binds}, {share}.",
        *_details(binds, traces, accounts, met_s, last_of),
        f"What to do: {_CURES[binds]}",
    ]
    return "\n".join(lines)


def _headline(trace: RankTrace, step_s: float) -> str:
    if not trace.steps:
        return f"No step is marked (`profiler.step()` does so), so this is the whole trace of {format_time_s(step_s)}"
    return f"{number_of(len(trace.steps), 'step')} of {format_time_s(step_s)}"


def _of_ranks(traces: Sequence[RankTrace]) -> str:
    ranks, world_size = [trace.rank for trace in traces], max(trace.world_size for trace in traces)
    return f"on {format_ranks(ranks)}" + (f" of {world_size}" if world_size > len(ranks) else "")


# collectives

_Met: TypeAlias = Mapping[Event, float]  # when the last rank started each collective that several ranks recorded


def _matched(traces: Sequence[RankTrace]) -> tuple[dict[Event, float], dict[Event, int]]:
    """For each event of a collective that several ranks recorded, when the last of them started, and which."""
    by_kind: defaultdict[tuple[str, str, int], list[Event]] = defaultdict(list)
    by_number: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    seen: Counter[tuple[object, ...]] = Counter()
    for event in (one.event for trace in traces for one in trace.activities if one.event.kind == COMMUNICATION):
        if not event.sequence or event.name in ("nccl:send", "nccl:recv"):
            by_kind[event.name, event.group, event.size_bytes].append(event)
            continue
        key = event.name, event.group, event.sequence  # sizes may differ: all_to_all_single, gather
        seen[event.rank, *key] += 1
        by_number[*key, seen[event.rank, *key]].append(event)
    met_s, last_of = {}, {}
    numbered = [events for events in by_number.values() if len(events) > 1]
    for members in (*numbered, *(one for events in by_kind.values() for one in _together(events))):
        last = max(members, key=lambda event: event.start_s)
        met_s |= dict.fromkeys(members, last.start_s)
        last_of |= dict.fromkeys(members, last.rank)
    return met_s, last_of


def _together(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield the events of one kind that ended together, each on a rank of its own."""
    group: list[Event] = []
    for event in [*sorted(events, key=lambda event: event.end_s), None]:
        if group and (event is None or not _belongs(event, group)):
            if len(group) > 1:
                yield group
            group = []
        group += [event] if event else []


def _belongs(event: Event, group: Sequence[Event]) -> bool:
    slack_s = max(SLACK_S, min(event.duration_s, group[0].duration_s) / 10)
    return event.end_s - group[0].end_s <= slack_s and all(one.rank != event.rank for one in group)


# one rank


def _account(trace: RankTrace, met_s: _Met, has_others: bool) -> Account:
    events = [one.event for one in trace.activities]
    span = [(min(event.start_s for event in events), max(event.end_s for event in events))]
    compute = under_way(event for event in events if event.kind not in (COMMUNICATION, COPY))
    talking = under_way(event for event in events if event.kind == COMMUNICATION)
    exposed = without(talking, compute)
    copies = without(without(under_way(event for event in events if event.kind == COPY), compute), talking)
    waits = under_way(replace(event, end_s=min(event.end_s, met_s[event])) for event in events if event in met_s)
    unmatched = without(exposed, under_way(event for event in events if event in met_s))
    matched = without(exposed, unmatched)
    transfer_s = length_s(without(matched, waits))
    idle, operators = _idle(trace, without(span, under_way(events)))
    seconds = {COMPUTE: length_s(compute), COPIES: length_s(copies), **idle}
    if has_others:
        seconds |= {TRANSFER: transfer_s, LATE: length_s(matched) - transfer_s}
    if unmatched or not has_others:
        seconds[ALONE] = length_s(unmatched)
    hidden_s = length_s(talking) - length_s(exposed)
    return Account(trace.rank, length_s(span), max(1, len(trace.steps)), seconds, hidden_s, operators)


def _idle(trace: RankTrace, gaps: Intervals) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Split the gaps between activities by what the host did when the GPU went idle; the operators in them."""
    if not trace.has_gpu:
        return {HOST: length_s(gaps)}, {}
    seconds: dict[str, float] = dict.fromkeys((INPUT, SYNC, LAUNCH, GAPS), 0.0)
    operators: defaultdict[tuple[str, str], float] = defaultdict(float)
    starts_s = [one.event.start_s for one in trace.activities]
    host = _Host(trace.calls)
    for start_s, end_s in gaps:
        following = trace.activities[min(bisect.bisect_left(starts_s, end_s - 1e-9), len(starts_s) - 1)]
        launched_s = following.launched_s
        if launched_s is None or launched_s <= start_s:  # launched in time: it waited for something on the GPU
            seconds[GAPS] += end_s - start_s
            continue
        kind, operator = host.cause(following.launched_by, start_s, min(launched_s, end_s))
        seconds[kind] += end_s - start_s
        operators[kind, operator] += end_s - start_s
    return seconds, operators


class _Host:
    """The calls of a rank's host, to be asked for a time."""

    def __init__(self, calls: Sequence[HostCall]) -> None:
        def of(kind: str) -> list[HostCall]:
            return [call for call in calls if call.kind == kind and not call.name.startswith("ProfilerStep")]

        self._operators, self._ranges = of(OPERATOR), of(RANGE)
        self._loading = [call for call in self._ranges if call.name.startswith(_LOADING)]
        self._blocking = [call for call in of(RUNTIME) if "Synchronize" in call.name or "Memcpy" in call.name]
        self._lines = [call for call in of(PYTHON) if _LINE.match(call.name) and "site-packages" not in call.name]

    def cause(self, thread: str, start_s: float, end_s: float) -> tuple[str, str]:
        """Why a GPU was idle from a time until a thread's next launch, and in which call of that thread."""
        middle_s = (start_s + end_s) / 2
        if _at(self._loading, middle_s, thread):
            return INPUT, ""
        if blocking := _at(self._blocking, start_s, thread):  # it returned only once the GPU had nothing left
            return SYNC, self._name(thread, blocking[0].start_s, blocking[0].name)
        return LAUNCH, self._name(thread, middle_s, "Python")

    def _name(self, thread: str, time_s: float, otherwise: str) -> str:
        """The outermost operator at a time or else the innermost range, and the line where the trace has stacks."""
        operators, ranges, lines = (
            _at(calls, time_s, thread) for calls in (self._operators, self._ranges, self._lines)
        )
        name = operators[0].name if operators else ranges[-1].name if ranges else otherwise
        return f"{name}, {lines[-1].name}" if lines else name


def _at(calls: Sequence[HostCall], time_s: float, thread: str) -> list[HostCall]:
    """A thread's calls in progress at a time, the outermost first, among the last that began; `calls` are sorted."""
    at = bisect.bisect_right(calls, time_s, key=lambda call: call.start_s)
    return [call for call in calls[max(0, at - _NESTED) : at] if call.end_s >= time_s and call.thread == thread]


# the report


def _table(accounts: Sequence[Account]) -> Iterator[str]:
    shown = sorted(accounts, key=lambda one: -one.step_s)[:_MOST_COLUMNS]
    shown = accounts if len(accounts) <= _MOST_COLUMNS else sorted(shown, key=lambda one: one.rank)
    rows = [["of a step", *(f"rank {one.rank}" for one in shown)]]
    kinds = [kind for kind in _ROWS if any(kind in one.seconds for one in accounts)]
    rows += [[kind, *(f"{_ms(one.per_step_s(kind))} ms" for one in shown)] for kind in kinds]
    rows.append(["all", *(f"{_ms(one.step_s)} ms" for one in shown)])
    rows.append([HIDDEN, *(f"{_ms(one.hidden_s / one.num_steps)} ms" for one in shown)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *cells in rows:
        yield "  ".join(
            [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
        )
    if len(shown) < len(accounts):
        yield f"(the {len(shown)} slowest of {len(accounts)} ranks)"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.1f}"


def _details(
    binds: str, traces: Sequence[RankTrace], accounts: Sequence[Account], met_s: _Met, last_of: Mapping[Event, int]
) -> Iterator[str]:
    num_steps = accounts[0].num_steps
    own = [one.event for one in traces[0].activities]
    if binds == LATE:
        yield from _who_is_late(accounts, met_s, last_of)
    elif binds in (TRANSFER, ALONE):
        by_size: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in (event for event in own if event.kind == COMMUNICATION):
            by_size[event.name, event.size_bytes].append(event)
        ordered = sorted(by_size.values(), key=lambda events: -sum(event.duration_s for event in events))
        yield from (f"  {_collective(events, met_s, num_steps)}" for events in ordered[:_MOST_LINES])
    elif binds in (SYNC, LAUNCH):
        operators = [pair for one in accounts for pair in one.operators.items()]
        for name, seconds in _sums((name, s) for (kind, name), s in operators if kind == binds)[:_MOST_LINES]:
            yield f"  {_ms(seconds / num_steps / len(accounts))} ms of it in {name[:_WIDTH]}"
    elif binds in (COMPUTE, COPIES):
        events = [event for event in own if event.kind != COMMUNICATION and (event.kind == COPY) == (binds == COPIES)]
        names = _sums((event.name, event.duration_s) for event in events)
        for name, seconds in names[:_MOST_LINES]:
            yield f"  {seconds / sum(each_s for _, each_s in names):.0%} of it in {name[:_WIDTH]}"


def _sums(pairs: Iterable[tuple[_Key, float]]) -> list[tuple[_Key, float]]:
    """The sum of each key's numbers, the largest first."""
    sums: defaultdict[_Key, float] = defaultdict(float)
    for key, number in pairs:
        sums[key] += number
    return sorted(sums.items(), key=lambda pair: -pair[1])


def _who_is_late(accounts: Sequence[Account], met_s: _Met, last_of: Mapping[Event, int]) -> Iterator[str]:
    lost_s = _sums((last_of[one], max(0.0, min(one.end_s, last_s) - one.start_s)) for one, last_s in met_s.items())
    rank, seconds = lost_s[0]
    share = seconds / sum(each_s for _, each_s in lost_s)
    yield f"  Rank {rank} starts last in {share:.0%} of the time that collectives wait."
    (late,) = (one for one in accounts if one.rank == rank)
    others = [one for one in accounts if one.rank != rank]
    more_s = {
        kind: late.per_step_s(kind) - statistics.median(one.per_step_s(kind) for one in others)
        for kind in _ROWS
        if kind not in (TRANSFER, LATE)
    }
    kind = max(more_s, key=lambda kind: more_s[kind])
    if more_s[kind] > seconds / len(others) / late.num_steps / 5:
        yield f"  It spends {_ms(more_s[kind])} ms more in a step on '{kind}' than the others' median."


def _collective(events: Sequence[Event], met_s: _Met, num_steps: int) -> str:
    """Collectives of a kind in a line: how many, how large, how long after the last rank's start, how fast."""
    moving_s = statistics.median(event.end_s - met_s.get(event, event.start_s) for event in events)
    each = f"{events[0].name}, {len(events) / num_steps:.3g} in a step"
    size_bytes = events[0].size_bytes
    if not size_bytes:
        return f"{each}: {format_time_s(moving_s)} each"
    rate = f", {significant(size_bytes / moving_s / 1e9, 2)} GB/s" if moving_s > 0 else ""
    return f"{each} of {format_bytes(size_bytes)}: {format_time_s(moving_s)} each{rate}"
