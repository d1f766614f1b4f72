"""A submitted program, as hidden checks see it: it runs in the sandbox, and is fed and timed from outside.

What it prints, writes and returns may be forged. The sample server itself records which rank took which samples when,
and which weights came back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autograder.judging.checks.check import StudentFailed
from autograder.judging.jail.programs import play, under_agent
from autograder.judging.judge.failures import PROGRAMS, raise_described
from autograder.judging.report import Outcome
from worldsize.bench.program import Incomplete, RestartPolicy, TrainingResult, TrainingSpec, read_lines, result_of
from worldsize.bench.samples import ADDRESS
from worldsize.launch import Run
from worldsize.launch.worker.agent import FORK_RANKS
from worldsize.timeline import Timeline

_ENDS_S = 3.0  # what torchrun's agent may take to end its ranks, within the limit


class SubmittedProgram:
    """One program in a submission's sandbox; a `worldsize.bench.program.Program`."""

    def __init__(
        self,
        source: str,
        socket_folder: str,
        launch: Callable[..., Run],
        limit_s: Callable[[], float],
        sources: Mapping[str, str],
        num_threads: int = 1,
    ) -> None:
        self.source, self._sources, self._num_threads = source, sources, num_threads
        self._launch, self._limit_s = launch, limit_s
        self.socket_folder = socket_folder
        self.errors = (StudentFailed, Incomplete)

    def play(self, spec: TrainingSpec, address: str) -> TrainingResult:
        """Do the same as `Program.play`.

        Raises:
            StudentFailed: a rank raised, died or hung, or time is used up.
        """
        options: dict[str, Any] = {"backend": "auto"}
        if spec.cluster is not None:
            options = {"cluster": spec.cluster, "faults": spec.faults, "keeps_exchanges": spec.keeps_exchanges}
        return result_of(
            self._launch(
                play,
                PROGRAMS,
                self.source,
                self._num_threads,
                spec.args(""),
                world_size=spec.world_size,
                env={ADDRESS: address},
                **options,
            )
        )

    def torchrun(self, spec: TrainingSpec, address: str, restart_policy: RestartPolicy) -> TrainingResult:
        """Do the same as `Program.torchrun`.

        Raises:
            StudentFailed: as for `play`; also when it did not recover from a failure.
        """
        env = {ADDRESS: address, "OMP_NUM_THREADS": str(self._num_threads), FORK_RANKS: "1"}
        limit_s = self._limit_s() - _ENDS_S
        run = self._launch(under_agent, PROGRAMS, self.source, spec, restart_policy, limit_s, env, world_size=1)
        raise_described(returned := run.values[0], self._sources)
        printed, restarts = returned.get("printed"), returned.get("restarts")
        if not isinstance(printed, str) or type(restarts) is not int:
            raise StudentFailed(Outcome.CRASHED, "The program's run under torchrun returned nothing.")
        return TrainingResult(read_lines(printed), Timeline(), restarts, "torchrun")
