"""Why a run of student code returned no values: the outcome, and the words for the student.

The outcome is what the kernel, the launcher or the conductor saw, never what a rank reports about its own end. The
words consist of the submission's own lines and of messages with a known form: anything else from a rank may carry what
must stay hidden.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.error_texts import sentence_for, shown_kind, shown_text, words_of
from autograder.judging.report import Outcome
from worldsize.emulate.protocol.operations import OPERATIONS
from worldsize.launch import RankFailed, RunTimeout
from worldsize.launch.protocol.call_log import BROKEN, DONE, ISSUED, POINT_TO_POINT, WAITING, Call
from worldsize.launch.protocol.failure import Failure, FailureCause
from worldsize.launch.reports import diagnosis
from worldsize.launch.reports.diagnosis import FAILED, RETURNED, RUNNING, StoppedRank
from worldsize.launch.reports.result import End, Ending
from worldsize.launch.reports.text import describe_hang
from worldsize.message import parse
from worldsize.source import Line, quote

PROGRAMS = "/tmp/home/program"  # the folder of a submitted program in its sandbox
_MAX_LINES = 6  # of a traceback that is shown
_CALLS = OPERATIONS | frozenset(POINT_TO_POINT) | {
    "all_gather_into_tensor", "all_gather_single", "all_to_all_single", "monitored_barrier", "reduce_scatter_single",
    "reduce_scatter_tensor",
}  # fmt: skip
_DTYPES = frozenset(
    f"{kind}{size}" for kind in ("complex", "float", "int", "uint") for size in (8, 16, 32, 64, 128)
) | {"bfloat16", "bool"}
_REDUCTIONS = frozenset(("AVG", "BAND", "BOR", "BXOR", "MAX", "MIN", "PRODUCT", "SUM"))
_MAX_SHOWN = 10**6  # a number in a report: sizes and ranks are smaller
_ENDINGS = {
    End.STALLED: "Nothing has moved for too long.",
    End.TIMEOUT: "The ranks were not done in their time.",
}
_CAUSES = {
    FailureCause.MESSAGE: "what the rank sent cannot be read",
    FailureCause.CONDUCTOR: "the emulated cluster ended the rank: what it posted cannot be",
}

Sources = Mapping[str, str]  # of what was handed in, by the file name that a traceback gives it


def of_failure(error: RankFailed, sources: Sources, sentences: Collection[str] = ()) -> StudentFailed:
    """Report the first culprit's error and its lines in the student's own cells; never a line of the checks.

    `sentences` are the forms of the checks' own messages.
    """
    culprit = error.failures[0]
    if culprit.cause is FailureCause.MISMATCH:
        found = diagnosis.mismatch([_shown_standing(one, sources, len(error.standings)) for one in error.standings])
        headline = found.sentence if found else "the ranks call different collectives"
    else:
        headline = _headline(culprit, sources, sentences)
    words = [f"Rank {culprit.rank}: {headline}", *quote(shown_lines(culprit.lines, sources))]
    if hint := sentence_for(culprit.headline):
        words.append(hint)
    return StudentFailed(_outcome_of(culprit), "\n".join(words), _was_killed(culprit))


def of_timeout(error: RunTimeout, sources: Sources) -> StudentFailed:
    """Report which rank waits for which, and where each one is in the student's own cells."""
    return _of_hang(error.standings, error.ending, sources)


def raise_described(described: Any, sources: Sources) -> None:
    """Raise StudentFailed if `described` is a failure of a run inside the sandbox, as for the same run outside.

    Anything that `jail.agent.describe` cannot have returned counts as a crash, unless it is empty.
    """
    try:
        failed = _of_described(described, sources)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        failed = StudentFailed(Outcome.CRASHED, "What came back from the ranks cannot be read.")
    if failed:
        raise failed


def values_of(returned: Any, world_size: int) -> list[Any]:
    """Return the ranks' values in what `jail.agent.call_under_agent` returned.

    Raises:
        StudentFailed: the values are missing.
    """
    values = returned.get("values") if isinstance(returned, dict) else None
    if not isinstance(values, list) or len(values) != world_size:
        raise StudentFailed(Outcome.CRASHED, "What came back from the ranks cannot be read.")
    return values


def _of_described(described: Any, sources: Sources) -> StudentFailed | None:
    if not isinstance(described, dict):
        raise ValueError("not a description")
    if "failures" in described:
        failures = [parse(fields, Failure) for fields in _items(described["failures"])]
        standings = [_read_standing(one) for one in _items(described["standings"])]
        if not failures:
            return StudentFailed(Outcome.CRASHED, "Torchrun's agent ended, and no rank reported why.")
        return of_failure(RankFailed("", failures, standings=standings), sources)
    if "ending" in described:
        ending = Ending(end := End[described["ending"]], _ENDINGS.get(end, "The run was ended."))
        return _of_hang([_read_standing(one) for one in _items(described["standings"])], ending, sources)
    return None


def _of_hang(standings: Sequence[StoppedRank], ending: Ending, sources: Sources) -> StudentFailed:
    shown = [_shown_standing(one, sources, len(standings)) for one in standings]
    outcome = Outcome.HUNG if any(one.waits_in for one in standings) else Outcome.TIME_LIMIT
    # no progress for too long, or not done in time: a busy machine may cause that as well
    is_late = ending.end in (End.STALLED, End.TIMEOUT)
    return StudentFailed(outcome, describe_hang(shown, ending.reason), is_late)


def _was_killed(failure: Failure) -> bool:
    """Whether the kernel killed the rank for lack of memory; a rank that causes this gains nothing."""
    return failure.cause is FailureCause.SIGNAL and failure.kind == signal.SIGKILL.name


def _outcome_of(failure: Failure) -> Outcome:
    if failure.cause is FailureCause.FORBIDDEN:
        return Outcome.FORBIDDEN
    if failure.cause is FailureCause.LIMIT:
        return Outcome.OUTPUT_LIMIT
    if failure.cause is FailureCause.SIGNAL and failure.kind == signal.SIGXCPU.name:
        return Outcome.TIME_LIMIT
    return Outcome.CRASHED


def shown_lines(lines: Sequence[Line], sources: Sources) -> list[Line]:
    """Return the lines that belong to the submission, each as it was submitted."""
    shown = []
    for line in lines:
        quoted = sources.get(line.filename, "").splitlines()
        if 0 < line.number <= len(quoted):
            is_known = line.function in words_of([sources[line.filename]])
            function = line.function if is_known else ""
            shown.append(Line(line.filename, line.number, function, quoted[line.number - 1].strip()[:200]))
    return shown[-_MAX_LINES:]


# the parts of a rank's report that may be shown


def _headline(failure: Failure, sources: Sources, sentences: Collection[str]) -> str:
    if failure.cause in _CAUSES:
        return _CAUSES[failure.cause]
    if failure.cause not in (FailureCause.REPORTED, FailureCause.FORBIDDEN):  # then the launcher has worded it
        return failure.headline
    own_words = words_of([*sources, *sources.values()])  # a cell has the name of what it is to define
    kind = shown_kind(failure.kind, own_words)
    text = shown_text(failure.message, own_words, sentences)
    if text or not failure.message:
        return f"{kind}: {text}" if text else kind
    return f"{kind}, with its own text, which is not shown here"


def _shown_standing(standing: StoppedRank, sources: Sources, world_size: int) -> StoppedRank:
    calls = [shown for call in standing.calls if (shown := _shown_call(call, sources, world_size))]
    native = _shown_call(standing.native, sources, world_size) if standing.native else None
    return replace(standing, lines=shown_lines(standing.lines, sources), calls=calls, native=native)


def _shown_call(call: Call, sources: Sources, world_size: int) -> Call | None:
    if call.op not in _CALLS:
        return None
    numbers = [*(call.shape or ()), call.number, call.sequence, call.tag]
    ranks = {*(call.ranks or ()), *([] if call.peer is None else [call.peer])}
    if not all(0 <= one < _MAX_SHOWN for one in numbers) or not ranks <= set(range(world_size)):
        return None
    return replace(
        call,
        dtype=call.dtype if call.dtype in _DTYPES else "",
        shape=call.shape if call.dtype in _DTYPES and len(call.shape or ()) <= 6 else None,
        reduction=call.reduction if call.reduction in _REDUCTIONS else "",
        line=next(iter(shown_lines([call.line], sources)), None) if call.line else None,
    )


def _read_standing(fields: Any) -> StoppedRank:
    """Read the fields that `jail.agent.fields_of_standing` wrote. Raises: ValueError, TypeError, KeyError."""
    return StoppedRank(
        _integer(fields["rank"]),
        fields["state"] if fields["state"] in (RETURNED, FAILED, RUNNING) else RUNNING,
        parse(fields["lines"][-20:], list[Line]),
        [_read_call(one) for one in fields["calls"][-64:]],
        _read_call(fields["native"]) if fields["native"] else None,
        _integer(fields["num_native"]),
    )


def _read_call(fields: Any) -> Call:
    state = fields["state"] if fields["state"] in (ISSUED, WAITING, DONE, BROKEN) else ISSUED
    return parse({**fields, "state": state}, Call)


def _items(text: Any) -> list[Any]:
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("not a list")
    return found


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not a whole number")
    return value
