"""The error to raise for a run that did not end well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worldsize.launch.protocol.failure import Failure
from worldsize.launch.reports import text
from worldsize.launch.reports.diagnosis import LOST, RETURNED, StoppedRank
from worldsize.launch.reports.result import End, Ending, RankFailed, RunError, RunStopped, RunTimeout


def error_of(
    ending: Ending,
    failures: Sequence[Failure],
    standings: Sequence[StoppedRank],
    output: Sequence[str],
    warnings: Sequence[str] = (),
    lost_s: Mapping[int, float] = text.NO_LOSS,
) -> RunError | None:
    """Make the error with which a run ends, warnings included; None if all ranks but the lost ones returned."""
    reason = "\n".join([ending.reason, *text.describe_losses(lost_s)])
    if ending.end is End.STOPPED:
        report = _joined(text.describe_hang(standings, reason), warnings)
        return RunStopped(report, failures, output, standings, ending)
    if failures:
        ordered = text.blame(failures, standings)
        report = _joined(text.describe_failure(ordered, standings, len(standings), lost_s), warnings)
        return RankFailed(report, ordered, output, standings, ending)
    if not standings or any(one.state not in (RETURNED, LOST) for one in standings):
        report = _joined(text.describe_hang(standings, reason), warnings)
        return RunTimeout(report, text.held_up(standings), output, standings, ending)
    return None


def _joined(report: str, warnings: Sequence[str]) -> str:
    return "\n".join([report, *warnings])
