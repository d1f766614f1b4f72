"""A submitted program, as hidden checks see it: started in the sandbox, fed and timed from outside.

What it prints, writes and returns may be forged. The sample server itself records which rank took which samples when,
and which weights came back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autograder.judging.jail.inside import describe
from autograder.judging.judge.failures import PROGRAMS, StudentFailed, raise_described
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
        """The same as `Program.play`.

        Raises:
            StudentFailed: a rank raised, died or hung, or time is used up.
        """
        options: dict[str, Any] = {"backend": "auto"}
        if spec.cluster is not None:
            options = {"cluster": spec.cluster, "faults": spec.faults, "keeps_exchanges": spec.keeps_exchanges}
        return result_of(
            self._launch(
                _play,
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
        """The same as `Program.torchrun`.

        Raises:
            StudentFailed: as for `play`; also when it did not recover from a failure.
        """
        env = {ADDRESS: address, "OMP_NUM_THREADS": str(self._num_threads), FORK_RANKS: "1"}
        limit_s = self._limit_s() - _ENDS_S
        run = self._launch(_under_agent, PROGRAMS, self.source, spec, restart_policy, limit_s, env, world_size=1)
        raise_described(returned := run.values[0], self._sources)
        printed, restarts = returned.get("printed"), returned.get("restarts")
        if not isinstance(printed, str) or type(restarts) is not int:
            raise StudentFailed(Outcome.CRASHED, "The program's run under torchrun gave nothing back.")
        return TrainingResult(read_lines(printed), Timeline(), restarts, "torchrun")


def _write(folder: str, source: str) -> str:
    """Write the program, inside the sandbox, and return its path."""
    import os

    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "train.py")
    partial = f"{path}.{os.getpid()}"  # ranks of one machine write the same file at the same time
    with open(partial, "w", encoding="utf-8") as file:
        file.write(source)
    os.replace(partial, path)
    return path


def _play(folder: str, source: str, num_threads: int, args: list[str]) -> None:
    """Run the program inside the sandbox, on a rank that has joined."""
    from worldsize.bench.program import play_on

    play_on(num_threads, _write(folder, source), *args)


def _under_agent(
    folder: str, source: str, spec: TrainingSpec, restart_policy: RestartPolicy, limit_s: float, env: dict[str, str]
) -> dict[str, Any]:
    """Call torchrun inside the sandbox, from a process that runs none of the program's code itself."""
    import contextlib
    import os
    import signal

    from worldsize.bench.program import under_agent
    from worldsize.launch import RunError

    def end_all() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all except this process and the jail's first: nothing of the job lives on

    os.makedirs(os.path.join(folder, "checkpoints"), exist_ok=True)
    path = _write(folder, source)
    try:
        result = under_agent(path, spec, os.path.join(folder, "checkpoints"), restart_policy, limit_s, env, end_all)
        return {"printed": "\n".join(line.model_dump_json() for line in result.lines), "restarts": result.restarts}
    except RunError as error:
        return describe(error)
