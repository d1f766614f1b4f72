"""The result of a run: a `Run`, or an exception whose text is the whole report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.reports.diagnosis import StoppedRank
from worldsize.memory.use import MemoryUse
from worldsize.timeline import Timeline
from worldsize.units import format_time_s

if TYPE_CHECKING:
    from worldsize.audit.report import Audit


@dataclass
class Run:
    """The result of a run: per rank its `values`, `output`, final `states`, and `durations_s` of the function.

    `duration_s` is the real time of the whole run; `cluster` names the emulated cluster, if any, whose virtual time is
    on the `timeline`; `restarts` counts how often torchrun restarted the ranks. `memory` is what each rank's tensors
    held, if the run recorded it, and `grown_bytes` the peak growth of each rank's processes during the function, as
    Linux measures it; otherwise both are empty. `warnings` describe failures that did not end the run: threads of ranks
    that ended with an exception, with its line. `lost_s` maps each rank that the others heard was lost, a `LostRank`,
    to the virtual time of its loss; its value is None and its `memory` empty. `exchanges` are the messages and
    collectives with their data, if the run kept them. `unawaited` names the sends and receives among each rank's last
    calls that it started and never waited for, with their lines. `audit` is what an audit of
    the run found.
    """

    values: list[Any]
    output: list[str]
    duration_s: float
    backend: str = "gloo"
    cluster: str = ""
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    states: list[str] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    restarts: int = 0
    memory: list[MemoryUse] = field(default_factory=list, repr=False)
    grown_bytes: list[int] = field(default_factory=list, repr=False)
    warnings: list[str] = field(default_factory=list)
    lost_s: dict[int, float] = field(default_factory=dict, repr=False)
    exchanges: list[Exchange] = field(default_factory=list, repr=False)
    unawaited: list[str] = field(default_factory=list, repr=False)
    audit: Audit | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        again = f", {self.restarts} restart{'s' if self.restarts > 1 else ''}" if self.restarts else ""
        where, took = self.backend, f"{self.duration_s:.2f} s"
        if self.cluster:
            where, took = (
                f"the emulated {self.cluster}",
                f"{format_time_s(self.timeline.end_s)} of virtual time, {took} here",
            )
        lost = "".join(f", rank {rank} lost at {time_s:g} s" for rank, time_s in self.lost_s.items())
        headline = f"Run({len(self.output)} ranks on {where}, {took}{again}{lost})"
        audit = [] if self.audit is None else [repr(self.audit)]
        return "\n".join([headline, *(f"Warning: {warning}" for warning in self.warnings), *audit])


class End(Enum):
    """The reason why a run is over."""

    ENDED = auto()  # every rank has returned or failed
    STUCK = auto()  # on an emulated cluster, no rank can ever go on
    STALLED = auto()  # there was no progress for a while, which a busy machine may also cause
    TIMEOUT = auto()  # the time is up
    STOPPED = auto()  # the stop button was pressed


@dataclass(frozen=True)
class Ending:
    """The reason why a run is over, as an `End` and, if its ranks had to be stopped, as a sentence."""

    end: End
    reason: str = "The run ended."


class RunError(RuntimeError):
    """A run that did not end well; its text is the whole report.

    `failures` lists the culprit first, `output` is per rank, `standings` say where each rank was, and `ending` why the
    run was over.
    """

    def __init__(
        self,
        report: str,
        failures: Sequence[Failure] = (),
        output: Sequence[str] = (),
        standings: Sequence[StoppedRank] = (),
        ending: Ending = Ending(End.ENDED),
    ) -> None:
        super().__init__(report)
        self.failures, self.output, self.standings = list(failures), list(output), list(standings)
        self.ending = ending
        self.audit: Audit | None = None  # of an audited run

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints: the report, without the launcher's own frames."""
        return [f"{type(self).__name__}: {self}"]


class RankFailed(RunError):
    """A rank raised, exited or was killed; `failures[0]` is the culprit."""


class RunTimeout(RunError):
    """The ranks did not finish in time, or made no progress; `failures` lists first the ranks that held up the run."""


class RunStopped(RunError):
    """The stop button was pressed."""
