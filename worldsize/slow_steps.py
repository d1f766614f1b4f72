"""Why the steps of a job of your own are slow, from traces of torch.profiler: where each rank's time goes, what binds.

Each moment of a rank counts once: as compute if a kernel runs, otherwise as communication, as a copy, or as idle.
Communication that no compute hides is split by the other ranks' traces into the wait for the last rank to start and
the transfer. A rank is late if those that share collectives with it wait there longer than it does, step after step,
and the time is not what it spent in communication that is not matched. Idle time is the host's if the host launched
what came next only after the GPU had gone idle.
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
from worldsize.timeline.kineto import (
    COPY,
    OPERATOR,
    PYTHON,
    RANGE,
    RUNTIME,
    HostCall,
    RankTrace,
    collectives,
    has_unknown_group,
    is_collective,
    read_traces,
)
from worldsize.units import MS, format_bytes, format_ranks, format_time_s, number_of, significant, time_scale

COMPUTE, TRANSFER, LATE, COPIES = "compute", "transfer", "wait for a later rank", "copy"
INPUT, SYNC, LAUNCH, GAPS = "idle: next batch", "idle: after a synchronization", "idle: launches", "idle: other"
HOST = "idle: Python"  # of a trace without a GPU
HIDDEN = "communication, hidden"
ALONE = "communication, unmatched"  # which no other trace has, so that it is not known who waited
_ROWS = (COMPUTE, TRANSFER, LATE, ALONE, COPIES, INPUT, SYNC, LAUNCH, GAPS, HOST)
_Key = TypeVar("_Key")
_OfRank = TypeVar("_OfRank", "Account", RankTrace)
_MOST_COLUMNS, _MOST_LINES, _WIDTH = 8, 3, 80
_LINE = re.compile(r"(?!torch/|<|nn\.Module).*\.py\(\d+\): ")  # of a program, as python_function has it
_BINDS = 0.1  # of the step: less is left to compute
_SAME = 0.02  # by which the numbers of two ranks' kernels may differ
_ERRORS = 2.5  # standard errors by which a rank must be late, otherwise it is chance
_MEMBERS = re.compile(r"\[([\d, ]+)\]")  # of a group, where its trace lists them all
_LOADING = ("enumerate(DataLoader)", "_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessing")
_CURES = {
    COMPUTE: "run fewer FLOPs or faster ones: bfloat16, larger matmuls, fused kernels, less recomputation.",
    TRANSFER: "send less or hide it: overlap with backward, larger buckets, another mesh, a faster link.",
    LATE: "make the ranks' work equal, or fix the slow one: its input, its clock, its share of tokens or layers.",
    ALONE: "look at their other ends in Perfetto: send and recv are not matched, nor are calls in one trace only.",
    COPIES: "pin the host's memory, copy with `non_blocking=True` on a stream of its own, keep data on the GPU.",
    INPUT: "load ahead: more workers (`num_workers`), `prefetch_factor`, `pin_memory`, `persistent_workers`, less work "
    "per sample, the dataset on a local disk.",
    SYNC: "take `.item()`, `.cpu()`, `print(loss)` and checks for NaN out of the step, or do them every 100 steps.",
    LAUNCH: "launch less: `torch.compile` (mode `reduce-overhead` for CUDA graphs), fused optimizers, larger batches.",
    HOST: "look at the Python code between the operators: `python -m cProfile`, or py-spy on the running rank.",
    GAPS: "look at the gaps in Perfetto: what came next waited for another stream, or its launch is not recorded.",
}
_LOADERS = "Do the same on the others if their loaders are as slow: while they wait, their loaders catch up unseen."


@dataclass(frozen=True)
class Account:
    """Where a rank's time goes, in seconds of the whole trace."""

    rank: int
    span_s: float
    num_steps: int
    num_computed: int
    """The kernels or, without a GPU, the operators of the whole trace."""
    seconds: Mapping[str, float]
    hidden_s: float
    operators: Mapping[tuple[str, str], float]
    """Idle time by its kind and by the host's call in it."""
    waited_s: Mapping[frozenset[int], Mapping[str, float]]
    """By the ranks that recorded the same collectives and by step, the seconds in which it waits for a later rank."""
    unmatched_s: Mapping[str, float]
    """By step, the seconds in communication that is not matched."""

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
    traces = [_without_operators_of_loading(trace) for trace in read_traces(paths)]
    shared = _shared(traces)
    met_s = _met(shared)
    accounts = [_account(trace, met_s, shared, len(traces) > 1) for trace in traces]
    step_s = statistics.fmean(one.step_s for one in accounts)
    late_ranks = _late(accounts, step_s)
    late, others = _split(accounts, late_ranks)  # these wait for a late rank's own time
    late_traces, other_traces = _split(traces, late_ranks)
    who = "the others" if len(late) + len(others) == len(traces) else "the others in its collectives"
    cause = _cause(late, others)
    binds, share = _binding(others)
    whose = "the other ranks'" if late else "the"
    lines = [
        f"{_headline(traces[0], step_s)} {_of_ranks(traces)}.",
        "",
        *_table(accounts, step_s),
        "",
        *(
            _lateness(late, others, who, cause, step_s)
            if late
            else ["No rank is late in step after step."]
            if met_s
            else []
        ),
        *(_details(cause, late_traces, late, met_s, step_s) if cause else []),
        *_unmatched(traces, met_s),
        f"What binds: {binds}, {share:.0%} of {whose} step.",
        *_details(binds, other_traces, others, met_s, step_s),
        f"What to do: {_cure(binds, traces, met_s, late, cause)}",
    ]
    return "\n".join(lines)


def _split(ranks: Sequence[_OfRank], late: Mapping[int, frozenset[int]]) -> tuple[list[_OfRank], list[_OfRank]]:
    """The late ones, and the others that wait for them, which are all if none is late."""
    waiting = frozenset[int]().union(*late.values()) - late.keys() if late else {one.rank for one in ranks}
    return [one for one in ranks if one.rank in late], [one for one in ranks if one.rank in waiting]


def _binding(accounts: Sequence[Account]) -> tuple[str, float]:
    """What binds these ranks, and its share of their step."""
    middle_s = {kind: statistics.fmean(one.per_step_s(kind) for one in accounts) for kind in _ROWS}
    step_s = statistics.fmean(one.step_s for one in accounts)
    others = max((kind for kind in _ROWS if kind != COMPUTE), key=lambda kind: middle_s[kind])
    binds = others if middle_s[others] >= _BINDS * step_s else COMPUTE
    return binds, middle_s[binds] / step_s


def _cure(binds: str, traces: Sequence[RankTrace], met_s: _Met, late: Sequence[Account], cause: str) -> str:
    if binds == LATE and not late:
        return "make the work of each step equal (lengths of samples), and give each process CPU cores of its own."
    if binds == LATE and cause not in ("", COMPUTE):
        on = f"on {format_ranks([one.rank for one in late])}, {_CURES[cause]}"
        return f"{on} {_LOADERS}" if cause == INPUT else on
    if binds == ALONE and (absent := _absent(traces, met_s)):
        return f"give the traces of {absent} too: only all together tell a slow link from a late rank."
    return _CURES[binds]


def _absent(traces: Sequence[RankTrace], met_s: _Met) -> str:
    """The ranks without a trace that take part in communication that is not matched; empty if there are none."""
    members, everyone = set[int](), set(range(max(trace.world_size for trace in traces)))
    for event in _communication(traces):
        if event not in met_s:
            named = _MEMBERS.search(event.group)
            members |= set(map(int, named[1].split(","))) if named else everyone
    if not members:
        return "the other ranks"
    missing = sorted(members - {trace.rank for trace in traces})
    return format_ranks(missing) if missing else ""


def _headline(trace: RankTrace, step_s: float) -> str:
    if not trace.steps:
        return f"No step is marked (`profiler.step()` does so), so this is the whole trace of {format_time_s(step_s)}"
    return f"{number_of(len(trace.steps), 'step')} of {format_time_s(step_s)}"


def _communication(traces: Iterable[RankTrace]) -> Iterator[Event]:
    return (one.event for trace in traces for one in trace.activities if one.event.kind == COMMUNICATION)


def _of_ranks(traces: Sequence[RankTrace]) -> str:
    ranks, world_size = [trace.rank for trace in traces], max(trace.world_size for trace in traces)
    return f"on {format_ranks(ranks)}" + (f" of {world_size}" if world_size > len(ranks) else "")


# collectives

_Met: TypeAlias = Mapping[Event, float]  # until when a rank waited in each collective that several ranks recorded


def _shared(traces: Sequence[RankTrace]) -> list[list[Event]]:
    """The events of each collective that several ranks recorded."""
    of_keys: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    for trace in traces:
        for key, event in collectives(trace).items():
            of_keys[key].append(event)
    return [members for members in of_keys.values() if len(members) > 1]


def _met(shared: Iterable[Sequence[Event]]) -> dict[Event, float]:
    """For each event of a collective that several ranks recorded, when the last rank started that it waited for.

    One that starts after a rank's end was not waited for: a broadcast's root may leave early.
    """
    met_s = {}
    for members in shared:
        starts_s = sorted(event.start_s for event in members)
        met_s |= {event: starts_s[bisect.bisect(starts_s, event.end_s) - 1] for event in members}
    return met_s


def _unmatched(traces: Sequence[RankTrace], met_s: _Met) -> Iterator[str]:
    """The collectives that could have been in another trace, and were not found or not looked for there."""
    lost, unknown = Counter[str](), Counter[str]()
    for trace in traces if len(traces) > 1 else ():
        for event in (event for event in _communication([trace]) if is_collective(event) and event not in met_s):
            (unknown if has_unknown_group(trace, event) else lost)[event.name] += 1
    if lost:
        yield f"In no other trace: {_counts(lost)}."
    if unknown:
        yield f"Not matched, as their ranks are in several groups and the traces do not name which: {_counts(unknown)}."


def _counts(names: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))


def _late(accounts: Sequence[Account], step_s: float) -> dict[int, frozenset[int]]:
    """The ranks for which others wait, a tenth of a step or more and more than by chance, each with those others.

    They are the ranks of the collectives in which they wait longest for it.
    """
    found = {}
    for one in accounts:
        late_s = dict[frozenset[int], float]()
        for ranks in one.waited_s:
            later_s = _later_s(one, [other for other in accounts if other.rank in ranks and other is not one], ranks)
            error_s = statistics.stdev(later_s) / len(later_s) ** 0.5 if len(later_s) > 1 else 0.0
            if later_s and statistics.fmean(later_s) >= max(_BINDS * step_s, _ERRORS * error_s):
                late_s[ranks] = statistics.fmean(later_s)
        if late_s:
            found[one.rank] = max(late_s, key=lambda ranks: late_s[ranks])
    are_all = not frozenset[int]().union(*found.values()) - found.keys()  # each in its turn, so that none is
    return {} if are_all else found


def _later_s(one: Account, others: Sequence[Account], ranks: frozenset[int]) -> list[float]:
    """In each common step, how long others wait for a rank in their common collectives, less what it waits itself.

    What it spends more than they do in unmatched communication is a wait too, as in a recv from a later rank.
    """
    steps = sorted(set(one.unmatched_s).intersection(*(other.unmatched_s for other in others)))
    found = []
    for step in steps:
        waits_s = statistics.median(other.waited_s[ranks][step] for other in others)
        more_s = one.unmatched_s[step] - statistics.median(other.unmatched_s[step] for other in others)
        found.append(waits_s - sum(own_s[step] for own_s in one.waited_s.values()) - max(0.0, more_s))
    return found


# one rank


def _loading(trace: RankTrace) -> Intervals:
    """When a rank without a GPU is in a `DataLoader`; beside a GPU, only idle time counts, which `_Host` splits."""
    ranges = (call for call in trace.calls if call.kind == RANGE and call.name.startswith(_LOADING))
    return [] if trace.has_gpu else under_way(ranges)


def _without_operators_of_loading(trace: RankTrace) -> RankTrace:
    """The same without the operators of a CPU that make a batch: they are not compute of the step."""
    loading = _loading(trace)

    def is_loading(event: Event) -> bool:
        place = bisect.bisect(loading, event.start_s, key=lambda interval: interval[0]) - 1
        return event.kind != COMMUNICATION and place >= 0 and event.end_s <= loading[place][1]

    left = tuple(one for one in trace.activities if not is_loading(one.event))
    return replace(trace, activities=left or trace.activities)


def _account(trace: RankTrace, met_s: _Met, shared: Iterable[Sequence[Event]], has_others: bool) -> Account:
    events = [one.event for one in trace.activities]
    starts_s = [event.start_s for event in events] + [start_s for start_s, _ in _loading(trace)]
    span = [(min(starts_s), max(event.end_s for event in events))]
    compute = under_way(event for event in events if event.kind not in (COMMUNICATION, COPY))
    talking = under_way(event for event in events if event.kind == COMMUNICATION)
    exposed = without(talking, compute)
    copies = without(without(under_way(event for event in events if event.kind == COPY), compute), talking)
    waits = {event: replace(event, end_s=met_s[event]) for event in events if event in met_s}
    unmatched = without(exposed, under_way(event for event in events if event in met_s))
    matched = without(exposed, unmatched)
    transfer_s = length_s(without(matched, under_way(waits.values())))
    idle, operators = _idle(trace, without(span, under_way(events)))
    seconds = {COMPUTE: length_s(compute), COPIES: length_s(copies), **idle}
    if has_others:
        seconds |= {TRANSFER: transfer_s, LATE: length_s(matched) - transfer_s}
    if unmatched or not has_others:
        seconds[ALONE] = length_s(unmatched)
    hidden_s = length_s(talking) - length_s(exposed)
    alone = {event for event in events if event.kind == COMMUNICATION and event not in met_s}
    of_ranks: defaultdict[frozenset[int], list[Event]] = defaultdict(list)
    for members in shared:
        ranks = frozenset(event.rank for event in members)
        if trace.rank in ranks:
            of_ranks[ranks] += [waits[event] for event in members if event.rank == trace.rank]
    return Account(
        trace.rank,
        length_s(span),
        max(1, len(trace.steps)),
        sum(event.kind not in (COMMUNICATION, COPY) for event in events),
        seconds,
        hidden_s,
        operators,
        {ranks: _in_steps(trace, some, compute) for ranks, some in of_ranks.items()},
        _in_steps(trace, alone, under_way(event for event in events if event not in alone and event.kind != COPY)),
    )


def _in_steps(trace: RankTrace, events: Iterable[Event], hidden: Intervals) -> dict[str, float]:
    """The seconds of events that are not hidden in each step, by its name."""
    starts_s = [step.start_s for step in trace.steps]
    parts: dict[str, list[Event]] = {step.name: [] for step in trace.steps} or {"": []}
    names = list(parts)
    for event in events:
        parts[names[max(0, bisect.bisect(starts_s, event.start_s) - 1)]].append(event)
    return {name: length_s(without(under_way(part), hidden)) for name, part in parts.items()}


def _idle(trace: RankTrace, gaps: Intervals) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Split the gaps between activities by what the host did when the GPU went idle; the operators in them."""
    if not trace.has_gpu:
        working = without(gaps, _loading(trace))
        return {INPUT: length_s(gaps) - length_s(working), HOST: length_s(working)}, {}
    seconds: dict[str, float] = dict.fromkeys((INPUT, SYNC, LAUNCH, GAPS), 0.0)
    operators: defaultdict[tuple[str, str], float] = defaultdict(float)
    on_gpu = [one for one in trace.activities if one.event.stream != COMMUNICATION]  # and not the host's, as Gloo's
    starts_s = [one.event.start_s for one in on_gpu]
    host = _Host(trace.calls)
    for start_s, end_s in gaps:
        following = on_gpu[min(bisect.bisect_left(starts_s, end_s - 1e-9), len(starts_s) - 1)]
        launched_s = following.launched_s
        if launched_s is None or launched_s <= start_s:  # launched in time: it waited for something on the GPU
            seconds[GAPS] += end_s - start_s
            continue
        kind, operator = host.cause(following.launched_by, start_s, min(launched_s, end_s))
        seconds[kind] += end_s - start_s
        operators[kind, operator] += end_s - start_s
    return seconds, operators


class _Nested:
    """Calls in each other on their threads, to be asked for those in progress at a time."""

    def __init__(self, calls: Iterable[HostCall]) -> None:
        self._calls: defaultdict[str, list[tuple[HostCall, int]]] = defaultdict(list)  # and the place of what it is in
        open_in: defaultdict[str, list[int]] = defaultdict(list)
        for call in sorted(calls, key=lambda call: (call.start_s, -call.end_s)):
            known, within = self._calls[call.thread], open_in[call.thread]
            while within and known[within[-1]][0].end_s < call.start_s:
                within.pop()
            known.append((call, within[-1] if within else -1))
            within.append(len(known) - 1)

    def at(self, time_s: float, thread: str) -> list[HostCall]:
        """A thread's calls in progress at a time, the outermost first."""
        known = self._calls.get(thread, [])
        place = bisect.bisect(known, time_s, key=lambda one: one[0].start_s) - 1
        found = []
        while place >= 0:
            call, place = known[place]
            found += [call] if call.end_s >= time_s else []
        return found[::-1]


class _Host:
    """The calls of a rank's host, to be asked for a time."""

    def __init__(self, calls: Sequence[HostCall]) -> None:
        def of(kind: str) -> list[HostCall]:
            return [call for call in calls if call.kind == kind and not call.name.startswith("ProfilerStep")]

        self._operators, self._ranges = _Nested(of(OPERATOR)), _Nested(of(RANGE))
        self._loading = _Nested(call for call in of(RANGE) if call.name.startswith(_LOADING))
        self._blocking = _Nested(call for call in of(RUNTIME) if "Synchronize" in call.name or "Memcpy" in call.name)
        self._lines = _Nested(
            call for call in of(PYTHON) if _LINE.match(call.name) and "site-packages" not in call.name
        )

    def cause(self, thread: str, start_s: float, end_s: float) -> tuple[str, str]:
        """Why a GPU was idle from a time until a thread's next launch, and in which call of that thread."""
        middle_s = (start_s + end_s) / 2
        if self._loading.at(middle_s, thread):
            return INPUT, ""
        if blocking := self._blocking.at(start_s, thread):  # it returned only once the GPU had nothing left
            return SYNC, self._name(thread, blocking[0].start_s, blocking[0].name)
        return LAUNCH, self._name(thread, middle_s, "Python")

    def _name(self, thread: str, time_s: float, otherwise: str) -> str:
        """The outermost operator at a time or else the innermost range, and the line where the trace has stacks."""
        operators, ranges, lines = (calls.at(time_s, thread) for calls in (self._operators, self._ranges, self._lines))
        name = operators[0].name if operators else ranges[-1].name if ranges else otherwise
        return f"{name}, {lines[-1].name}" if lines else name


# the report


def _table(accounts: Sequence[Account], step_s: float) -> Iterator[str]:
    shown = sorted(accounts, key=lambda one: -one.step_s)[:_MOST_COLUMNS]
    shown = accounts if len(accounts) <= _MOST_COLUMNS else sorted(shown, key=lambda one: one.rank)
    rows = [["of a step", *(f"rank {one.rank}" for one in shown)]]
    kinds = [kind for kind in _ROWS if any(kind in one.seconds for one in accounts)]
    rows += [[kind, *(_short(one.per_step_s(kind), step_s) for one in shown)] for kind in kinds]
    rows.append(["all", *(_short(one.step_s, step_s) for one in shown)])
    rows.append([HIDDEN, *(_short(one.hidden_s / one.num_steps, step_s) for one in shown)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for name, *cells in rows:
        yield "  ".join(
            [name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
        )
    if len(shown) < len(accounts):
        yield f"(the {len(shown)} slowest of {len(accounts)} ranks)"


def _short(time_s: float, step_s: float) -> str:
    """A part of a step in the unit that suits the step, which is milliseconds at most."""
    factor, unit = min(time_scale(step_s), (MS, "ms"))
    return f"{time_s / factor:.{1 if step_s >= 10 * factor else 2}f} {unit}"


def _details(
    binds: str, traces: Sequence[RankTrace], accounts: Sequence[Account], met_s: _Met, step_s: float
) -> Iterator[str]:
    num_steps = accounts[0].num_steps
    own = [one.event for one in traces[0].activities]
    if binds in (TRANSFER, ALONE):
        by_size: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in (event for event in own if event.kind == COMMUNICATION):
            by_size[event.name, event.size_bytes].append(event)
        ordered = sorted(by_size.values(), key=lambda events: -sum(event.duration_s for event in events))
        yield from (f"  {_collective(events, met_s, num_steps)}" for events in ordered[:_MOST_LINES])
    elif binds in (SYNC, LAUNCH):
        operators = [pair for one in accounts for pair in one.operators.items()]
        for name, seconds in _sums((name, s) for (kind, name), s in operators if kind == binds)[:_MOST_LINES]:
            yield f"  {_short(seconds / num_steps / len(accounts), step_s)} of it in {name[:_WIDTH]}"
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


def _middle_s(accounts: Sequence[Account], kind: str) -> float:
    return statistics.median(one.per_step_s(kind) for one in accounts)


def _cause(late: Sequence[Account], others: Sequence[Account]) -> str:
    """What late ranks spend more time on than the others, if that is a part of what these wait; otherwise empty."""
    if not late:
        return ""
    more_s = {kind: _middle_s(late, kind) - _middle_s(others, kind) for kind in _ROWS if kind not in (TRANSFER, LATE)}
    cause = max(more_s, key=lambda kind: more_s[kind])
    return cause if more_s[cause] > _middle_s(others, LATE) / 5 else ""


def _lateness(late: Sequence[Account], others: Sequence[Account], who: str, cause: str, step_s: float) -> Iterator[str]:
    is_are, it_spends, it_runs = ("are", "They spend", "They run") if len(late) > 1 else ("is", "It spends", "It runs")
    ranks = format_ranks([one.rank for one in late]).capitalize()
    yield f"{ranks} {is_are} late: {who} wait {_short(_middle_s(others, LATE), step_s)} of a step."
    if cause:
        spent, usual = (_short(_middle_s(some, cause), step_s) for some in (late, others))
        yield f"  {it_spends} {spent} of a step on '{cause}', the others {usual} (medians)."
    if cause == COMPUTE:
        own, usual = (statistics.median(one.num_computed / one.num_steps for one in some) for some in (late, others))
        if abs(own - usual) < _SAME * own:
            yield f"  {it_runs} as much as the others, but slower: larger inputs, a lower clock or shared cores."
        else:
            yield f"  {it_runs} {own:.0f} kernels or operators in a step, the others {usual:.0f}."


def _collective(events: Sequence[Event], met_s: _Met, num_steps: int) -> str:
    """Collectives of a kind in a line: how many, how large, how long after the last rank's start, how fast."""
    moving_s = statistics.median(event.end_s - met_s.get(event, event.start_s) for event in events)
    each = f"{events[0].name}, {len(events) / num_steps:.3g} in a step"
    size_bytes = events[0].size_bytes
    if not size_bytes:
        return f"{each}: {format_time_s(moving_s)} each"
    rate = f", {significant(size_bytes / moving_s / 1e9, 2)} GB/s" if moving_s > 0 else ""
    return f"{each} of {format_bytes(size_bytes)}: {format_time_s(moving_s)} each{rate}"
