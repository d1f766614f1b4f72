"""Traces of torch.profiler (kineto's JSON, as `export_chrome_trace` writes it), read without torch.

Source of the fields: torch 2.13, libkineto's `output_json.cpp`; of those of collectives, torch/csrc/distributed/c10d/
ParamCommsUtils.hpp.
"""

from __future__ import annotations

import bisect
import gzip
import itertools
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from worldsize.event import COMMUNICATION, Event

COPY = "copy"  # the kind of a transfer between GPU and host that no kernel makes
_ON_GPU = {"kernel": "compute", "gpu_memset": "compute", "memset": "compute", "gpu_memcpy": COPY, "memcpy": COPY}
OPERATOR, RANGE, RUNTIME, PYTHON = "operator", "range", "runtime", "python"  # kinds of calls on the host
_ON_HOST = {"cpu_op": OPERATOR, "user_annotation": RANGE, "python_function": PYTHON}
_OTHERS = ("mtia_", "privateuse1_", "hpu_")  # accelerators whose activities are not read
_BACKENDS = ("gloo:", "nccl:", "mpi:", "xccl:")
_HOST_BACKENDS = ("gloo:", "mpi:")  # which no kernel shows beside a GPU
_ROOTED = re.compile(r":(?:broadcast|reduce|gather|scatter)$")  # in which some ranks may leave early
_MESSAGE = re.compile(r":(?:send|recv)")
_KERNEL = re.compile(r"[nr]ccl(?:Symk?)?(?:Dev)?Kernels?_([A-Za-z]+)")
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NAMES = {  # of collectives, and what programs call
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single",
    "all_to_allv": "all_to_all_single",
    "all_to_all": "all_to_all_single",
}
_ITEM_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2}  # others have one byte
_STEP = re.compile(r"ProfilerStep#?\s*(\d+)")
_RANK = re.compile(r"(?:rank|worker)[_-]?(\d+)")
_GZIP, _HEAD_BYTES = b"\x1f\x8b", 4096
_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"')  # of which a trace has one near its beginning
_SLACK_S = 2e-4  # by which the ends of one collective may differ between ranks
_Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class HostCall:
    """A call on the host: of an operator, of CUDA's runtime, of a Python function, or a range that a user marked."""

    start_s: float
    end_s: float
    name: str
    kind: str
    thread: str


@dataclass(frozen=True)
class Activity:
    """What ran on a GPU, or on a host without one, and when the host launched it, if it did."""

    event: Event
    launched_s: float | None = None
    launched_by: str = ""
    """The host's thread."""


@dataclass(frozen=True)
class RankTrace:
    """The trace of one rank; all times are in seconds since `epoch_s`, that of the machine's clock."""

    rank: int
    world_size: int
    host: str
    """The machine's name; empty if the trace has none."""
    epoch_s: float
    has_gpu: bool
    devices: frozenset[int]
    """The GPUs that ran kernels, by number."""
    steps: tuple[HostCall, ...]
    """Those that the profiler's schedule has marked."""
    activities: tuple[Activity, ...]
    calls: tuple[HostCall, ...]
    ambiguous: frozenset[str]
    """The backends of which the rank is in groups of several sets of ranks, if the file lists them."""

    def later(self, shift_s: float) -> RankTrace:
        """The same with all times moved by `shift_s`."""

        def moved(call: HostCall) -> HostCall:
            return replace(call, start_s=call.start_s + shift_s, end_s=call.end_s + shift_s)

        def at(activity: Activity) -> Activity:
            launched_s = None if activity.launched_s is None else activity.launched_s + shift_s
            return replace(activity, event=_later(activity.event, shift_s), launched_s=launched_s)

        return replace(
            self,
            epoch_s=self.epoch_s - shift_s,
            steps=tuple(map(moved, self.steps)),
            activities=tuple(map(at, self.activities)),
            calls=tuple(map(moved, self.calls)),
        )


def read_traces(paths: Iterable[str | Path]) -> list[RankTrace]:
    """Read one trace for each rank, plain or compressed by gzip, with times since the first activity of all.

    A rank is the one that the file names (`distributedInfo`), otherwise the number behind `rank` or `worker` in the
    file's name, otherwise 0. Collectives that the backend has not numbered are numbered by their order, unless they may
    be of several groups. Machines whose clocks differ are put on that of the lowest rank, by the collectives that both
    have recorded.

    Raises:
        ValueError: a file cannot be read or has no activity, or two are of one rank.
    """
    traces: dict[int, RankTrace] = {}
    for path in map(Path, paths):
        trace = _trace(path)
        if trace.rank in traces:
            raise ValueError(
                f"{path.name} is a second trace of rank {trace.rank}; give one for each, with rankN in its name"
            )
        traces[trace.rank] = trace
    if not traces:
        raise ValueError("name the files with the profiler's traces, one for each rank")
    ordered = _numbered([traces[rank] for rank in sorted(traces)])
    shifts_s = _shifts_s(ordered)
    start_s = min(
        activity.event.start_s + shift_s
        for trace, shift_s in zip(ordered, shifts_s, strict=True)
        for activity in trace.activities
    )
    return [trace.later(shift_s - start_s) for trace, shift_s in zip(ordered, shifts_s, strict=True)]


def is_trace(path: str | Path) -> bool:
    """Whether a file looks like such a trace; False if it cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(_GZIP) or any(mark in head for mark in _MARKS)


def collectives(trace: RankTrace) -> dict[tuple[object, ...], Event]:
    """Return the numbered collectives of a rank, each by a key that is the same on all ranks of its group."""
    seen: Counter[tuple[object, ...]] = Counter()
    found: dict[tuple[object, ...], Event] = {}
    for event in (one.event for one in trace.activities if is_collective(one.event) and one.event.sequence):
        key = event.name, event.group, event.sequence  # sizes may differ: all_to_all_single, gather
        seen[key] += 1
        found[(*key, seen[key])] = event
    return found


def is_collective(event: Event) -> bool:
    """Whether this is communication of a group, and neither a message nor a copy between GPUs."""
    return event.kind == COMMUNICATION and event.name.startswith(_BACKENDS) and not _MESSAGE.search(event.name)


def has_unknown_group(trace: RankTrace, event: Event) -> bool:
    """Whether this is a collective that names no group, of a backend whose groups have several sets of ranks."""
    return is_collective(event) and not event.group and _backend(event) in trace.ambiguous


def _backend(event: Event) -> str:
    return event.name.partition(":")[0] + ":"


def _numbered(ordered: Sequence[RankTrace]) -> list[RankTrace]:
    """Number the collectives that have no number: all ranks of a group call them in the same order."""
    first: dict[tuple[str, str], tuple[RankTrace, list[Event]]] = {}
    leads: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)  # by how many calls a rank's trace is late
    for trace in ordered:
        calls: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in (one.event for one in trace.activities):
            if is_collective(event) and not event.sequence and not has_unknown_group(trace, event):
                calls[event.name, event.group].append(event)
        for kind, events in calls.items():
            known, others = first.setdefault(kind, (trace, events))
            lead = _lead(known, others, trace, events)
            if lead is not None:
                leads[kind][trace.rank] = lead
    return [_with_numbers(trace, leads) for trace in ordered]


def _with_numbers(trace: RankTrace, leads: Mapping[tuple[str, str], Mapping[int, int]]) -> RankTrace:
    seen: Counter[tuple[str, str]] = Counter()
    activities = list[Activity]()
    for one in trace.activities:
        kind = one.event.name, one.event.group
        of_ranks = leads.get(kind, {})
        if trace.rank in of_ranks and is_collective(one.event) and not one.event.sequence:
            seen[kind] += 1
            number = seen[kind] + of_ranks[trace.rank] - min(of_ranks.values())
            one = replace(one, event=replace(one.event, sequence=number))
        activities.append(one)
    return replace(trace, activities=tuple(activities))


def _lead(known: RankTrace, others: Sequence[Event], trace: RankTrace, events: Sequence[Event]) -> int | None:
    """How many of a known trace's calls of a kind come before the first one of another trace; None if not clear.

    As many calls in the same steps are the same calls. Otherwise one of the traces begins or ends later: by how much is
    what most of the common steps say or, without steps, most of the calls, by the nearest end.
    """
    if len(others) == len(events) and [one.name for one in known.steps] == [one.name for one in trace.steps]:
        return 0
    if known.steps and trace.steps:
        steps = {one.name: one for one in known.steps}
        votes = [
            _num_before(others, known_s) - _num_before(events, own_s)
            for one in trace.steps
            if (step := steps.get(one.name))
            for known_s, own_s in ((step.start_s, one.start_s), (step.end_s, one.end_s))
        ]
    else:
        ends_s, ahead_s = sorted(one.end_s for one in others), trace.epoch_s - known.epoch_s
        middles_s = [(one_s + next_s) / 2 for one_s, next_s in itertools.pairwise(ends_s)]
        own_s = sorted(one.end_s + ahead_s for one in events)
        votes = [bisect.bisect(middles_s, one_s) - place for place, one_s in enumerate(own_s)]
    ((lead, agreeing),) = Counter(votes).most_common(1) or [(0, 0)]
    return lead if 2 * agreeing > len(votes) else None


def _num_before(events: Sequence[Event], time_s: float) -> int:
    return sum(event.start_s < time_s for event in events)


def _shifts_s(ordered: Sequence[RankTrace]) -> list[float]:
    """The seconds that put each on the first's clock, by the collectives in common with those that are on it already.

    A machine has one clock. Another machine's is moved so that collectives end together if they then do, or if most
    would otherwise have ended on one rank before another started them. Gloo's end at unequal times and move no clock
    that could be right. Two machines may have one name: the ends of kernels, if most agree, move the clock again.
    """
    left = {trace.rank: (trace, collectives(trace)) for trace in ordered}
    ahead_s, shifts_s = dict[str, float](), dict[int, float]()  # by machine, by rank
    placed: dict[tuple[object, ...], Event] = {}
    while left:
        rank = max(left, key=lambda rank: (len(left[rank][1].keys() & placed.keys()), -rank))
        trace, own = left.pop(rank)
        shift_s, machine = trace.epoch_s - ordered[0].epoch_s, trace.host or f"of rank {rank}"
        pairs = [(own[key], placed[key]) for key in own.keys() & placed.keys()]
        known_s = ahead_s.setdefault(machine, _ahead_s(pairs, shift_s))
        more_s = _ahead_s([pair for pair in pairs if pair[0].stream != COMMUNICATION], shift_s - known_s)
        shifts_s[rank] = shift_s - known_s - (more_s if abs(more_s) > _SLACK_S else 0.0)
        placed = {key: _later(event, shifts_s[rank]) for key, event in own.items()} | placed
    return [shifts_s[trace.rank] for trace in ordered]


def _ahead_s(pairs: Sequence[tuple[Event, Event]], shift_s: float) -> float:
    """By how much a clock is ahead, from its events and others of the same collectives, in which all wait for all."""
    pairs = [pair for pair in pairs if not _ROOTED.search(pair[0].name)]
    later_s = [own.end_s + shift_s - other.end_s for own, other in pairs]
    middle_s = statistics.median_low(later_s) if later_s else 0.0
    agreeing = sum(abs(one_s - middle_s) <= _SLACK_S for one_s in later_s)
    apart = sum(
        max(own.start_s + shift_s, other.start_s) > min(own.end_s + shift_s, other.end_s)
        for own, other in pairs
        if own.group  # otherwise they may be of two groups
    )
    return middle_s if 2 * max(agreeing, apart) > len(pairs) else 0.0


def _later(event: Event, shift_s: float) -> Event:
    return replace(event, start_s=event.start_s + shift_s, end_s=event.end_s + shift_s)


def _trace(path: Path) -> RankTrace:
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    try:
        whole = json.loads(gzip.decompress(body) if body.startswith(_GZIP) else body)
        trace, cats = _parsed(whole, path.name), {str(one.get("cat", "")).lower() for one in whole["traceEvents"]}
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{path.name}: not a whole trace of torch.profiler ({error!r})") from None
    if not trace.has_gpu and (other := next((cat for cat in sorted(cats) if cat.startswith(_OTHERS)), "")):
        raise ValueError(f"{path.name}: its accelerator's activities ({other}) cannot be read; a GPU's or CPU's can")
    if not any(activity.event.duration_s for activity in trace.activities):
        raise ValueError(f"{path.name}: it has no operators and no kernels; let the profiler record some steps")
    if len(trace.devices) > 1:
        raise ValueError(
            f"{path.name}: it has kernels of {len(trace.devices)} GPUs; only ranks with one can be explained"
        )
    return trace


def _parsed(whole: _Record, name: str) -> RankTrace:
    records = [one for one in whole["traceEvents"] if one.get("ph") == "X" and "dur" in one]
    info, first_us = whole.get("distributedInfo") or {}, min((one["ts"] for one in records), default=0)
    number = _RANK.search(name)
    rank = int(info.get("rank", number[1] if number else 0))
    has_gpu = any(one.get("cat", "").lower() in _ON_GPU for one in records)
    calls = sorted(_calls(records, first_us))
    activities = _on_gpu(records, first_us, rank) if has_gpu else _on_host(records, first_us, rank)
    groups = _groups(info)
    known = {backend: min(sets) for backend, sets in groups.items() if len(sets) == 1}
    activities = [replace(one, event=_in_group(one.event, known)) for one in activities]
    steps = sorted({call.name: call for call in calls if _STEP.fullmatch(call.name)}.values())
    lengths_s = [call.end_s - call.start_s for call in steps]
    if len(steps) > 1 and lengths_s[-1] < statistics.median(lengths_s[:-1]) / 20:
        del steps[-1]  # begun by the last `step()` of a program that ends before the schedule does
    return RankTrace(
        rank,
        int(info.get("world_size", 0)) or max((one.get("args", {}).get("Group size", 0) for one in records), default=0),
        whole.get("host_name", ""),
        first_us / 1e6 + int(whole.get("baseTimeNanoseconds", 0)) / 1e9,
        has_gpu,
        frozenset(one.get("args", {}).get("device", 0) for one in records if one.get("cat", "").lower() == "kernel"),
        tuple(steps),
        tuple(sorted(activities, key=lambda one: (one.event.start_s, one.event.end_s))),
        tuple(calls),
        frozenset(groups.keys() - known.keys()),
    )


def _groups(info: _Record) -> dict[str, set[str]]:
    """The sets of ranks of each backend's groups that a rank is in."""
    of_backends: defaultdict[str, set[str]] = defaultdict(set)
    for group in info.get("pg_config") or ():
        for backend in _BACKENDS:
            if backend.removesuffix(":") in group.get("backend_config", ""):
                of_backends[backend].add(str(group.get("ranks", "")))
    return of_backends


def _in_group(event: Event, groups: Mapping[str, str]) -> Event:
    """The same in its backend's only group if the trace does not name one, as it does not for Gloo."""
    if event.group or not is_collective(event):
        return event
    return replace(event, group=groups.get(_backend(event), ""))


def _calls(records: Iterable[_Record], first_us: float) -> Iterator[HostCall]:
    for one in records:
        if kind := _kind_on_host(one):
            yield HostCall(*_span_s(one, first_us), one["name"], kind, str(one.get("tid")))


def _kind_on_host(one: _Record) -> str:
    cat = one.get("cat", "").lower()
    return RUNTIME if cat.endswith(("_runtime", "_driver")) else _ON_HOST.get(cat, "")


def _on_gpu(records: list[_Record], first_us: float, rank: int) -> list[Activity]:
    launches = {
        one["args"]["correlation"]: one
        for one in records
        if _kind_on_host(one) == RUNTIME and "correlation" in one.get("args", {})
    }
    found = []
    for one in records:
        if kind := _ON_GPU.get(one.get("cat", "").lower()):
            if kind == COPY:  # between GPUs it is communication, within one the GPU's own work
                kind = "compute" if "DtoD" in one["name"] else COMMUNICATION if "PtoP" in one["name"] else COPY
            args = one.get("args", {})
            event = _event(one, first_us, rank, f"cuda {args.get('stream', one.get('tid'))}", kind)
            found.append(Activity(event))
            if launch := launches.get(args.get("correlation")):
                found[-1] = Activity(event, _span_s(launch, first_us)[0], str(launch.get("tid")))
        elif _starts_with(one, _HOST_BACKENDS):
            found.append(Activity(_event(one, first_us, rank, COMMUNICATION, COMMUNICATION)))
    return found


def _starts_with(one: _Record, beginnings: tuple[str, ...]) -> bool:
    """Whether this is an operator or a range with a name that begins so."""
    return _kind_on_host(one) in (OPERATOR, RANGE) and one["name"].startswith(beginnings)


def _on_host(records: list[_Record], first_us: float, rank: int) -> list[Activity]:
    """The operations of the backend, and of each thread the outermost operators."""
    found, busy_us = [], dict[Any, float]()
    for one in sorted(records, key=lambda one: (one["ts"], -one["dur"])):
        if _starts_with(one, _BACKENDS):
            found.append(Activity(_event(one, first_us, rank, COMMUNICATION, COMMUNICATION)))
        elif _starts_with(one, ("aten::",)) and one["ts"] >= busy_us.get(one.get("tid"), 0):
            busy_us[one.get("tid")] = one["ts"] + one["dur"]
            found.append(Activity(_event(one, first_us, rank, "compute", "compute")))
    return found


def _event(one: _Record, first_us: float, rank: int, stream: str, kind: str) -> Event:
    start_s, end_s = _span_s(one, first_us)
    name, args = one["name"], one.get("args", {})
    if kind != COMMUNICATION and "ccl" in name.lower() and (kernel := _KERNEL.search(name)):
        kind, name = COMMUNICATION, f"nccl:{_WORD.sub('_', kernel[1]).lower()}"
        if collective := args.get("Collective name"):
            name = f"nccl:{_NAMES.get(collective, collective)}"
    if kind != COMMUNICATION:
        return Event(rank, stream, kind, name, start_s, end_s)
    count = max(args.get("In msg nelems", 0), args.get("Out msg nelems", 0))
    size_bytes = count * _ITEM_BYTES.get(args.get("dtype", ""), 1)
    group = f"{args.get('Process Group Name', '')} {args.get('Process Group Ranks', '')}".strip()
    return Event(rank, stream, kind, name, start_s, end_s, size_bytes, group=group, sequence=int(args.get("Seq", 0)))


def _span_s(one: _Record, first_us: float) -> tuple[float, float]:
    start_s = (one["ts"] - first_us) / 1e6
    return start_s, start_s + one["dur"] / 1e6
