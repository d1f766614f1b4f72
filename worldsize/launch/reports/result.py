"""What a run ends with: a `Run`, or an exception whose text is the whole report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from worldsize.launch.protocol.failure import Failure
from worldsize.launch.reports.diagnosis import Standing
from worldsize.timeline import Timeline


@dataclass
class Run:
    """What a run gave: by rank, its `values`, `output`, `states` at the end, and `durations_s` in the function.

    `duration_s` is the whole run in seconds; `restarts` counts how often torchrun started its ranks again.
    """

    values: list[Any]
    output: list[str]
    duration_s: float
    backend: str = "gloo"
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    states: list[str] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    restarts: int = 0

    def __repr__(self) -> str:
        again = f", {self.restarts} restart{'s' if self.restarts > 1 else ''}" if self.restarts else ""
        return f"Run({len(self.output)} ranks on {self.backend}, {self.duration_s:.2f} s{again})"


class RunError(RuntimeError):
    """A run that did not end well; its text is the whole report.

    `failures` has the culprit first, `output` is by rank, `standings` say where each rank stood.
    """

    def __init__(
        self,
        report: str,
        failures: Sequence[Failure] = (),
        output: Sequence[str] = (),
        standings: Sequence[Standing] = (),
    ) -> None:
        super().__init__(report)
        self.failures, self.output, self.standings = list(failures), list(output), list(standings)

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints: the report, without a stack of the launcher's own frames."""
        return [f"{type(self).__name__}: {self}"]


class RankFailed(RunError):
    """A rank raised, exited or was killed; `failures[0]` is the culprit."""


class RunTimeout(RunError):
    """The ranks were not done in time, or none of them got on any more; `failures` are those who held up the rest."""

    is_stalled = False  # True where nothing moved for too long, which a busy machine may cause as well

    @property
    def why(self) -> str:
        """The report's first line, which names no rank: time was up, or nothing could move."""
        return str(self).partition("\n")[0]


class RunStopped(RunError):
    """The stop button was pressed."""
