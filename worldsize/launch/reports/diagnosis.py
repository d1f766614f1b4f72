"""Diagnosis of hangs: mismatched calls, ranks that wait for each other, a rank that all others wait for."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from worldsize.launch.protocol.call_log import NEW_GROUP, WAITING, Call
from worldsize.launch.reports.cures import (
    EVERY_GROUP,
    EVERY_RANK,
    NO_MESSAGE,
    NOT_THERE,
    SAME_CALLS,
    SAME_SIZES,
    SAME_STEPS,
    SEND_FIRST,
    Cure,
)
from worldsize.source import Line, is_cell
from worldsize.units import format_ranks

_LEAST_PARTED = 2  # collectives from different lines, up to the last, that show that calls have parted
_MOST_STEPS = 4  # steps of a cycle that are described
RETURNED, FAILED, LOST, RUNNING = "has returned", "has failed", "was lost, as planned", "is still working"
# collectives in which every rank's tensor must have the same number of items, whatever its shape
_SAME_SIZE = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter"}
    | {"all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"}
)


@dataclass(frozen=True)
class StoppedRank:
    """Where one rank was when the run was stopped: its state, its main thread's lines, its last calls.

    `native` is a collective that it waits for and that torch called, such as DDP's; by torch's count, `num_native`
    collectives had been started.
    """

    rank: int
    state: str = RUNNING
    lines: list[Line] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    native: Call | None = None
    num_native: int = 0

    @functools.cached_property
    def reached(self) -> dict[tuple[str, tuple[int, ...] | None], int]:
        """The number of the last collective that it has started, by group and its ranks."""
        last: dict[tuple[str, tuple[int, ...] | None], int] = {}
        for call in self.calls:
            if not call.is_point_to_point:
                last[call.group, call.ranks] = max(call.sequence, last.get((call.group, call.ranks), 0))
        return last

    @functools.cached_property
    def waits_in(self) -> Call | None:
        """The call in which it waits; None if it does not wait or has ended."""
        if self.state != RUNNING:
            return None
        return next((call for call in reversed(self.calls) if call.state == WAITING), self.native)

    @property
    def in_cells(self) -> StoppedRank:
        """The same, with only the lines of notebook cells."""
        calls = [
            replace(call, line=None) if call.line and not is_cell(call.line.filename) else call for call in self.calls
        ]
        return replace(self, lines=[line for line in self.lines if is_cell(line.filename)], calls=calls)

    @property
    def doing(self) -> str:
        """A phrase for what it was doing, to end a sentence."""
        if self.waits_in:
            return f"waits in {self.waits_in}"
        return f"is at {self.lines[-1]}" if self.lines and self.state == RUNNING else self.state


@dataclass(frozen=True)
class Diagnosis:
    """One sentence on why nothing moved, and the culprits: the few ranks that differ, or that others wait for.

    `cure` says what to do; `place` is the number, in its group, of the collective that differs.
    """

    sentence: str
    culprits: list[int]
    cure: Cure
    calls: dict[int, Call] = field(default_factory=dict)
    place: int = 0


def diagnose(standings: Sequence[StoppedRank]) -> Diagnosis | None:
    """The first that holds: mismatched calls, a circle of waits, a rank that others wait for, or stacks that differ."""
    return mismatch(standings) or _circle(standings) or _missing(standings) or _by_stacks(standings)


def mismatch(standings: Sequence[StoppedRank]) -> Diagnosis | None:
    """Return the first collective of a group that differs between ranks; None if all known ones agree."""
    by_place = _by_place(standings)
    for place in sorted(by_place, key=lambda place: place[2]):
        calls = by_place[place]
        if len({_signature(call) for call in calls.values()}) > 1:
            return _describe_mismatch(calls, place[2])
    return None


def parting(standings: Sequence[StoppedRank], before: int = 0) -> str:
    """Say where the ranks' collectives first came from different lines and then never agreed again; empty if nowhere.

    After one rank has made a call more or less, calls pair up by luck, which shows in their lines alone. Calls that
    differ and are followed by equal ones, such as those of a root, are no parting. With `before`, the parting must be
    before the collective of this number.
    """
    by_place = _by_place(standings)
    for group in dict.fromkeys(place[:2] for place in by_place):
        common = [by_place[place] for place in sorted(by_place) if place[:2] == group and len(by_place[place]) > 1]
        apart = [*itertools.takewhile(_are_apart, reversed(common))]
        if len(apart) < _LEAST_PARTED:
            continue
        calls = apart[-1]
        number = next(iter(calls.values())).sequence
        is_known = len(apart) < len(common) or number == 1  # otherwise they may have parted earlier
        if is_known and (not before or number < before):
            ranks_at: dict[Line | None, list[int]] = {}
            for rank, call in calls.items():
                ranks_at.setdefault(call.line, []).append(rank)
            parts = ", ".join(f"{name_ranks(ranks)} at {line}" for line, ranks in ranks_at.items())
            return f"The ranks' calls part at collective {number}: {parts.replace(', Rank', ', rank')}."
    return ""


def _are_apart(calls: dict[int, Call]) -> bool:
    lines = {(call.line.filename, call.line.number) if call.line else None for call in calls.values()}
    return len(lines) > 1 or len({_signature(call) for call in calls.values()}) > 1


def _by_place(standings: Sequence[StoppedRank]) -> dict[tuple[str, tuple[int, ...], int], dict[int, Call]]:
    """Map each known collective, by its group and its number there, to the ranks' calls."""
    by_place: dict[tuple[str, tuple[int, ...], int], dict[int, Call]] = {}
    for standing in standings:
        for call in standing.calls:
            if not call.is_point_to_point and call.sequence:
                place = (call.group, call.ranks or (), call.sequence)
                by_place.setdefault(place, {})[standing.rank] = call
    return by_place


def _signature(call: Call) -> tuple[object, ...]:
    num_items = math.prod(call.shape) if call.op in _SAME_SIZE and call.shape is not None else None
    return call.op, call.dtype, num_items, call.peer, call.reduction, call.members


def _describe_mismatch(calls: dict[int, Call], place: int) -> Diagnosis:
    votes = Counter(_signature(call) for call in calls.values())
    kinds = sorted(votes, key=lambda kind: votes[kind])
    groups = [[rank for rank in calls if _signature(calls[rank]) == kind] for kind in kinds]
    is_tie = votes[kinds[0]] == votes[kinds[-1]]
    parts = [f"{name_ranks(ranks)} {'call' if ranks[1:] else 'calls'} {calls[ranks[0]]}" for ranks in groups]
    sentence = "Collectives do not match: " + ", ".join(parts).replace(", Rank", ", rank")
    if any(call.op == NEW_GROUP for call in calls.values()):
        sentence += "; every rank must call new_group for every group, in the same order, including groups without it"
        cure = EVERY_GROUP
    else:
        is_of_size = len({(call.op, call.dtype, call.peer, call.reduction) for call in calls.values()}) == 1
        elsewhere = _different_lines([[calls[rank] for rank in ranks] for ranks in groups]) if is_of_size else []
        if elsewhere:
            places = ", ".join(f"{name_ranks(ranks)} at {line}" for ranks, line in zip(groups, elsewhere, strict=True))
            sentence += f"; one of them skipped a call or added one: {places.replace('Rank', 'rank')}"
        cure = SAME_SIZES if is_of_size and not elsewhere else SAME_CALLS
    return Diagnosis(sentence + ".", sorted(calls) if is_tie else groups[0], cure, calls, place)


def _different_lines(groups: Sequence[Sequence[Call]]) -> list[Line]:
    """The line of each group's first call, if all lines are known and no two groups have one in common."""
    lines = [{(call.line.filename, call.line.number): call.line for call in group if call.line} for group in groups]
    are_apart = all(lines) and len(set().union(*lines)) == sum(map(len, lines))
    return [next(iter(of_group.values())) for of_group in lines] if are_apart else []


def _circle(standings: Sequence[StoppedRank]) -> Diagnosis | None:
    waits = {one.rank: list(_waited_for(one, standings)) for one in standings}
    for start in waits:
        trail = [start]
        while (following := next(iter(waits.get(trail[-1], [])), None)) is not None and following not in trail:
            trail.append(following)
        if following is not None:
            circle = trail[trail.index(following) :]
            cure = SEND_FIRST if all(_is_in_message(one, standings) for one in circle) else SAME_CALLS
            return Diagnosis(_describe_circle(circle, standings), sorted(circle), cure)
    return None


def _is_in_message(rank: int, standings: Sequence[StoppedRank]) -> bool:
    call = next(one.waits_in for one in standings if one.rank == rank)
    return call is not None and call.is_point_to_point


def _describe_circle(circle: list[int], standings: Sequence[StoppedRank]) -> str:
    by_rank = {one.rank: one for one in standings}
    if len(circle) == 1:
        return f"Rank {circle[0]} waits for itself in {by_rank[circle[0]].waits_in}."
    pairs = zip(circle, [*circle[1:], circle[0]], strict=True)
    parts = [f"rank {rank} waits for rank {other} in {by_rank[rank].waits_in}" for rank, other in pairs]
    if len(parts) > _MOST_STEPS:
        parts = [*parts[: _MOST_STEPS - 1], f"and so on round to rank {circle[0]}"]
    return f"{name_ranks(sorted(circle))} wait for each other: {', '.join(parts)}."


def _missing(standings: Sequence[StoppedRank]) -> Diagnosis | None:
    waits = {one.rank: list(_waited_for(one, standings)) for one in standings}
    wanted = {other for others in waits.values() for other in others}
    blocking = [one for one in standings if one.rank in wanted and not waits[one.rank]]
    if not blocking:
        return None
    sentences = []
    for one in blocking:
        waiting = sorted(rank for rank, others in waits.items() if one.rank in others)
        call = next(standing.waits_in for standing in standings if standing.rank == waiting[0])
        verb = "waits" if len(waiting) == 1 else "wait"
        sentences.append(f"{name_ranks(waiting)} {verb} for rank {one.rank} in {call}; rank {one.rank} {one.doing}.")
    if any(one.state == RETURNED for one in blocking):
        cure = SAME_STEPS
    elif all(_is_in_message(rank, standings) for rank, others in waits.items() if others):
        cure = NO_MESSAGE
    else:
        cure = NOT_THERE if all(one.lines and not one.waits_in for one in blocking) else EVERY_RANK
    return Diagnosis(" ".join(sentences), [one.rank for one in blocking], cure)


def _by_stacks(standings: Sequence[StoppedRank]) -> Diagnosis | None:
    """Where only stacks are known: ranks that wait in a collective, and those that are elsewhere."""
    running = [one for one in standings if one.state == RUNNING and one.lines]
    if any(one.calls for one in standings) or not any(one.waits_in for one in running):
        return None
    ranks_in: dict[str, list[int]] = {}
    for one in running:
        ranks_in.setdefault(one.waits_in.op if one.waits_in else "", []).append(one.rank)
    if len(ranks_in) == 1:
        return None
    outside = ranks_in.pop("", [])
    parts = [f"{name_ranks(ranks)} {'wait' if ranks[1:] else 'waits'} in {op}" for op, ranks in ranks_in.items()]
    if outside:
        parts.append(f"{name_ranks(outside)} {'are' if outside[1:] else 'is'} in no collective")
    sentence = "By their stacks, " + ", ".join(parts).replace("Rank", "rank") + "."
    fewest = min(ranks_in.values(), key=lambda ranks: len(ranks))
    return Diagnosis(sentence, outside or fewest, NOT_THERE if outside else SAME_CALLS)


def _waited_for(standing: StoppedRank, standings: Sequence[StoppedRank]) -> Iterator[int]:
    """The ranks without which this one cannot go on, as far as the calls show."""
    call = standing.waits_in
    if call is None:
        return
    others = {one.rank: one for one in standings}
    if call.is_point_to_point:
        if call.peer in others:
            yield call.peer
        return
    for rank in _members(call, standings):
        other = others.get(rank)
        if other and rank != standing.rank and not _has_reached(other, call, standing):
            yield rank


def _has_reached(other: StoppedRank, call: Call, standing: StoppedRank) -> bool:
    """Whether `other` has started the collective that `standing` waits in."""
    if call is standing.native:
        return other.num_native >= call.sequence
    return other.reached.get((call.group, call.ranks), -1) >= call.sequence


def _members(call: Call, standings: Sequence[StoppedRank]) -> tuple[int, ...]:
    return call.ranks if call.ranks is not None else tuple(one.rank for one in standings)


def name_ranks(ranks: Sequence[int]) -> str:
    """Format as 'Rank 1', 'Ranks 0, 2 and 3' or, for five or more in a row, 'Ranks 0 to 7'."""
    return format_ranks(ranks, _MOST_STEPS + 1).capitalize()
