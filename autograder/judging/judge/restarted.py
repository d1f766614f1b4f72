"""A function of a hidden check as a training program, whose ranks are restarted when one of them dies.

A restart takes a tenth of a second, because the ranks are forked in the submission's sandbox. Of the files that they
leave there only the checkpoint folder is kept, as on a different machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from autograder.judging.checks.check import StudentFailed
from autograder.judging.jail.programs import FOLDER, lend_on_rank
from autograder.judging.report import Outcome
from worldsize.bench.program import Incomplete, RestartPolicy, TrainingResult, TrainingSpec
from worldsize.bench.samples import ADDRESS
from worldsize.launch import Run

_FINAL = (Outcome.HUNG, Outcome.TIME_LIMIT)  # after which the sandbox and the files in it are gone


class RestartedFunction:
    """`on_rank(student, folder, spec, *args)` on every rank; a `worldsize.bench.program.Program`."""

    def __init__(
        self, start: Callable[..., Run], launch: Callable[..., Run], sweep: Callable[[], None], socket_folder: str
    ) -> None:
        self._start, self._launch, self._sweep, self.socket_folder = start, launch, sweep, socket_folder
        self.errors = (StudentFailed, Incomplete)

    def play(self, spec: TrainingSpec, address: str) -> TrainingResult:
        """Do the same as `Program.play`, without a restart."""
        return self.torchrun(spec, address, RestartPolicy(0))

    def torchrun(self, spec: TrainingSpec, address: str, restart_policy: RestartPolicy) -> TrainingResult:
        """Train; after each failure go on with the next of the policy's world sizes, while there is one.

        Raises:
            StudentFailed: a rank raised, died or hung, and no restart was left; or time is used up.
        """
        env, folder = {ADDRESS: address}, os.path.join("/tmp", FOLDER)
        next_sizes = restart_policy.next_world_sizes or [spec.world_size] * restart_policy.max_restarts
        failures: list[StudentFailed] = []
        try:
            self._launch(lend_on_rank, folder, world_size=1, backend="gloo", env=env, kept=FOLDER)
            for restarts, world_size in enumerate([spec.world_size, *next_sizes]):
                try:
                    self._start(folder, spec, world_size=world_size, backend="gloo", env=env, kept=FOLDER)
                    return TrainingResult(restarts=restarts, backend="gloo")
                except StudentFailed as failed:
                    failures.append(failed)
                    if failed.outcome in _FINAL or restarts == len(next_sizes):
                        # a killed rank reports less than one that raised
                        own = [one for one in failures if not one.may_be_external]
                        raise (own or failures)[-1] from None
            raise AssertionError("the last start returns or raises")
        finally:
            self._sweep()
