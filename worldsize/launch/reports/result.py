"""What a run ends with: a `Run`, or an exception whose text is the whole report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.reports.diagnosis import StoppedRank
from worldsize.memory.use import MemoryUse
from worldsize.timeline import Timeline
from worldsize.units import format_time_s


@dataclass
class Run:
    """The result of a run: by rank its `values`, `output`, `states` at the end, and `durations_s` in the function.

    `duration_s` is the whole run in seconds of this machine; `cluster` names the emulated one, if there is one, whose
    time is on the `timeline`; `restarts` counts how often torchrun started its ranks again. `memory` is
    by rank what its tensors held, of a run that was asked for it, and `grown_bytes` by how much its processes' memory
    grew at its most in the function, as Linux says; empty elsewhere. `warnings` say what went wrong without ending the
    run: threads of ranks that ended with an exception, with its line. `lost_s` has by rank the virtual time at which a
    `LostRank` of which the others heard was lost; its value is None, and its `memory` empty. `exchanges` are what went
    over the wire of a run that was to keep it, body by body. `unawaited` names the sends and receives among each rank's
    last calls that it started and never waited for, with their lines.
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
        return "\n".join([headline, *(f"Warning: {warning}" for warning in self.warnings)])


class End(Enum):
    """Why a run is over."""

    ENDED = auto()  # every rank has returned or failed
    STUCK = auto()  # on an emulated cluster: nothing can ever move again
    STALLED = auto()  # nothing has moved for a while, which a busy machine may also cause
    TIMEOUT = auto()  # the time is up
    STOPPED = auto()  # the stop button was pressed


@dataclass(frozen=True)
class Ending:
    """Why a run is over, for programs and, where its ranks had to be stopped, as a sentence."""

    end: End
    reason: str = "The run ended."


class RunError(RuntimeError):
    """A run that did not end well; its text is the whole report.

    `failures` has the culprit first, `output` is by rank, `standings` say where each rank was, `ending` why the run
    was over.
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

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints: the report, without a stack of the launcher's own frames."""
        return [f"{type(self).__name__}: {self}"]


class RankFailed(RunError):
    """A rank raised, exited or was killed; `failures[0]` is the culprit."""


class RunTimeout(RunError):
    """The ranks were not done in time, or nothing moved any more; `failures` names first the ranks that held it up."""


class RunStopped(RunError):
    """The stop button was pressed."""
