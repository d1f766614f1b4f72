"""The text of a report: which ranks failed and which only suffered from it, or why nothing moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from worldsize.launch.protocol.call_log import Call
from worldsize.launch.protocol.failure import Failure, FailureCause, order
from worldsize.launch.reports import cures, diagnosis
from worldsize.launch.reports.diagnosis import LOST, RETURNED, StoppedRank, name_ranks
from worldsize.source import Line, quote

NO_LOSS: Mapping[int, float] = MappingProxyType({})

_RING = 3  # smallest number of ranks in a ring: of two, each is the other's next


def blame(failures: Sequence[Failure], standings: Sequence[StoppedRank]) -> list[Failure]:
    """The failures, culprits first: the ranks whose collective differs, if all failures are only symptoms of that."""
    ordered = order(failures)
    found = diagnosis.mismatch(standings) if all(failure.is_symptom for failure in ordered) else None
    if found is None:
        return ordered
    lines = {rank: [line] if (line := found.calls[rank].line) else [] for rank in found.culprits}
    kind, cause = "a mismatched collective", FailureCause.MISMATCH
    first = [Failure(rank, kind, found.sentence, lines[rank], cause=cause) for rank in found.culprits]
    return [*first, *(failure for failure in ordered if failure.rank not in found.culprits)]


def describe_failure(
    failures: Sequence[Failure], standings: Sequence[StoppedRank], num_ranks: int, lost_s: Mapping[int, float] = NO_LOSS
) -> str:
    """Report a failed run, culprit first: its lines, a sentence on each other failure, and every rank's last call."""
    culprit, *others = failures
    parts = [f"Rank {culprit.rank} of {num_ranks} failed with {culprit.headline}", *quote(culprit.lines)]
    if not culprit.lines:
        parts += _last_line(culprit.rank, standings)
    victims = sorted(other.rank for other in others if other.is_victim)
    alike = sorted(other.rank for other in others if not other.is_victim and other.headline == culprit.headline)
    if alike:
        parts.append(f"{name_ranks(alike)} failed in the same way.")
    parts += [
        f"Rank {other.rank} failed too, with {other.headline}"
        for other in others
        if not other.is_victim and other.rank not in alike
    ]
    if victims:
        parts.append(f"{name_ranks(victims)} lost the connection because of it.")
    cure = _cure_of(culprit, standings)
    parts += [*describe_losses(lost_s), *_last_calls(standings)]
    if cure is cures.SAME_CALLS and (parted := diagnosis.parting(standings)):
        parts.append(parted)
    return "\n".join([*parts, *_what_to_do(cure)])


def _cure_of(culprit: Failure, standings: Sequence[StoppedRank]) -> cures.Cure | None:
    found = diagnosis.mismatch(standings) if culprit.cause is FailureCause.MISMATCH else None
    return found.cure if found else cures.of_failure(culprit.headline)


def describe_losses(lost_s: Mapping[int, float]) -> list[str]:
    """Write a sentence on each planned loss, given the virtual time by rank."""
    return [f"Rank {rank} was lost at {time_s:g} s of virtual time, as planned." for rank, time_s in lost_s.items()]


def describe_hang(standings: Sequence[StoppedRank], reason: str) -> str:
    """The report of a run that did not end: why it was stopped, then where each rank was."""
    found = diagnosis.diagnose(standings)
    parted = diagnosis.parting(standings, found.place if found else 0)
    parts = [reason, *([found.sentence] if found else []), *([parted] if parted else [])]
    if not standings:
        parts.append("None of them had started.")
    # a mismatch describes its ranks with their calls, any other diagnosis with what they do
    named = found.culprits if found and not found.calls else []
    standings = [one for one in standings if one.state != LOST]
    over = [one.rank for one in standings if one.state == RETURNED and one.rank not in named]
    if over:
        parts.append(f"{name_ranks(over)} had already returned.")
    unfinished = [one for one in standings if one.state != RETURNED]
    neighbours = _neighbours(unfinished)
    for ranks, text in _alike([(one.rank, _place(one, neighbours.get(one.rank, ""))) for one in unfinished]):
        parts.append(f"{name_ranks(ranks)} {text}")
    return "\n".join([*parts, *_what_to_do(found and (cures.SAME_CALLS if parted else found.cure))])


def _what_to_do(cure: cures.Cure | None) -> list[str]:
    return [str(cure)] if cure else []


def describe_threads(failed: Iterable[tuple[int, str, Failure]]) -> list[str]:
    """Describe threads that ended with an exception, given by rank and name; identical ones share an entry."""
    texts = [
        (rank, "\n".join([f"{name} ended with {failure.headline}", *quote(failure.lines)]))
        for rank, name, failure in failed
    ]
    return [f"{name_ranks(ranks)}, thread {words}" for ranks, words in _alike(texts)]


def describe_unseen(num_unseen: Mapping[int, int]) -> list[str]:
    """Describe how many collectives of these ranks could not be recorded; ranks with the same number share an entry."""
    texts = [(rank, str(num)) for rank, num in sorted(num_unseen.items())]
    return [
        f"{name_ranks(ranks)}: collectives that torch itself started and that could not be recorded: {num}; the "
        "timeline's bytes sent and times of communication are NaN"
        for ranks, num in _alike(texts)
    ]


def describe_unawaited(issued: Iterable[tuple[int, Sequence[Call]]]) -> list[str]:
    """Write a sentence on each of these sends and receives, whose handles were never waited for."""
    messages = [(rank, call) for rank, calls in issued for call in calls if call.is_point_to_point]
    return [
        f"rank {rank}: {call}{f', {call.line}' if call.line else ''}, was never waited for" for rank, call in messages
    ]


def held_up(standings: Sequence[StoppedRank]) -> list[Failure]:
    """Where each unfinished rank was, those that held up the others first."""
    found = diagnosis.diagnose(standings)
    culprits = found.culprits if found else []
    involved = [one for one in standings if one.state not in (RETURNED, LOST) or one.rank in culprits]
    ordered = sorted(involved, key=lambda one: one.rank not in culprits)
    return [Failure(one.rank, "not done", one.doing, one.lines, cause=FailureCause.UNFINISHED) for one in ordered]


def _neighbours(standings: Sequence[StoppedRank]) -> dict[int, str]:
    """By rank, how the peer is called in a message that ranks all round a ring wait in, on the same lines."""
    groups: dict[object, list[tuple[int, int]]] = {}
    for one in standings:
        call = one.waits_in
        if call and call.is_point_to_point and call.peer is not None:
            key = call.op, call.what, call.tag, call.line, tuple(one.lines)
            groups.setdefault(key, []).append((one.rank, call.peer))
    named: dict[int, str] = {}
    for pairs in groups.values():
        for step, words in ((1, "the next rank"), (-1, "the rank before")):
            if len(pairs) >= _RING and all(peer == (rank + step) % len(pairs) for rank, peer in pairs):
                named |= {rank: words for rank, _ in pairs}
    return named


def _place(standing: StoppedRank, neighbour: str) -> str:
    call = standing.waits_in
    lines = standing.lines or ([call.line] if call and call.line else [])
    if not lines and not call:
        return "stopped outside any call, and did not report where"
    name = str(call).replace(f"rank {call.peer}", neighbour, 1) if call and neighbour else str(call)
    headline = f"stopped in {name}" if call else "stopped outside any call, at"
    return "\n".join([headline, *quote(lines), *_line_elsewhere(call, lines)])


def _line_elsewhere(call: Call | None, lines: Sequence[Line]) -> list[str]:
    """Quote the line of a call if the main thread's lines lack it: it was made in another thread, or earlier."""
    if call is None or call.line is None or any(_is_same(call.line, line) for line in lines):
        return []
    return ["That call was made at", *quote([call.line])]


def _is_same(one: Line, other: Line) -> bool:
    return (one.filename, one.number) == (other.filename, other.number)


def _last_calls(standings: Sequence[StoppedRank]) -> list[str]:
    known = [(one.rank, f"{one.calls[-1]}, {one.calls[-1].state}") for one in standings if one.calls]
    return [f"{name_ranks(ranks)}, last call: {call}" for ranks, call in _alike(known)]


def _last_line(rank: int, standings: Sequence[StoppedRank]) -> list[str]:
    """The place of a rank's last call, which is all that is known of one whose process has ended without a report."""
    calls = next((one.calls for one in standings if one.rank == rank), [])
    return ["Its last call was at", *quote([calls[-1].line])] if calls and calls[-1].line else []


def _alike(texts: Sequence[tuple[int, str]]) -> list[tuple[list[int], str]]:
    """Group the ranks that have the same text, ordered by each group's first rank."""
    groups: dict[str, list[int]] = {}
    for rank, text in texts:
        groups.setdefault(text, []).append(rank)
    return [(ranks, text) for text, ranks in groups.items()]
