"""The student's code as hidden checks see it: a function to run on ranks in the sandbox, and what it returned."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle

from autograder.judging.checks.check import StudentFailed
from autograder.judging.jail.agent import call_under_agent
from autograder.judging.jail.auditing import findings_on_rank
from autograder.judging.jail.cells import Setting, call_on_rank, record_on_rank
from autograder.judging.jail.made import Made
from autograder.judging.judge import audits, failures
from autograder.judging.judge.crowding import crowding
from autograder.judging.judge.failures import PROGRAMS
from autograder.judging.judge.on_paper import claimed, expect_agreement
from autograder.judging.judge.program_under_test import SubmittedProgram
from autograder.judging.judge.restarted import RestartedFunction
from autograder.judging.report import Outcome
from autograder.judging.request import CodeUnderTest
from autograder.sandbox import Sandbox, limits_with, zygote
from worldsize.audit.notes import FOLDER
from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch import RankFailed, Run, RunTimeout
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.runner import launch
from worldsize.paper.result import PaperRun, cluster_of

# the limit of a call once one has hung, on an idle machine: the code is known not to end by itself
_AFTER_A_HANG_S = 5.0
_OWN_TIMES = 4  # times that limit for a run of the judge's own, which ends unless the machine is at fault
_HANG_SHARE = 1 / 6  # or this share of a call's limit, where that is more: a project's calls take longer
_VALUES_BYTES, _VALUE_BYTES = 256 << 20, 64 << 20  # of all ranks, which the judge holds at once, and of one
_PRINTED_BYTES = 64 << 20  # of each rank; little of it is kept
_AGENT_ENDS = 0.2  # of the limit: what torchrun's agent may take to end its ranks, within it
_PICKLED_BY_VALUE = tuple(
    f"autograder.judging.jail.{name}" for name in ("agent", "auditing", "bans", "cells", "made", "programs")
)
_SAMPLES = "worldsize.bench"  # a submission that imports it trains on samples that the judge hands out
_USED_UP = "The time for this submission was used up by the checks before this one."


class SandboxedStudent:
    """One submission in its own sandbox. Only data comes out of it, all of which may be forged.

    Keywords of every run: `student_ranks` names the ranks that run the student's cells, by default all; on others
    `on_rank` gets None for the student, and no student code runs in their processes. `forbid` maps names of torch's
    classes and modules, such as "torch.distributed.Reducer", to a sentence for a student who uses them; `jail.bans`
    says what that prevents and what it does not. What is `made` is made on every rank before the student's cells run,
    and handed to `on_rank` as its last argument. `sentences` are the forms of messages that checks raise on ranks.
    `num_returned` counts the runs that came back. `last_run` is the last run of student code, to be `audited`; None if
    it failed or had one rank.
    """

    def __init__(self, code: CodeUnderTest, sentences: Sequence[str] = ()) -> None:
        self._code, self._sentences = code, sentences
        self._cells = list(code.cells)
        self._call_s, self._left_s = code.call_s, code.total_s
        self._sources = {f"<cell {name}>": source for name, source in self._cells}
        self._sources |= {os.path.join(PROGRAMS, name): source for name, source in code.programs.items()}
        self._sources |= code.programs  # where a check compiles a program, its file has this name
        # the time that a hang leaves to the other checks
        self._after_a_hang_s = max(_AFTER_A_HANG_S, code.call_s * _HANG_SHARE)
        self.num_returned = 0
        self.last_run: Callable[..., Run] | None = None
        has_samples = bool(code.programs) or _SAMPLES in code.preload
        self._shown = ""
        if has_samples:
            self._shown = tempfile.mkdtemp(prefix="shown-", dir=zygote.shared(code.preload).scratch)
            os.chmod(self._shown, 0o711)  # a jail has its own user
        self._sandbox = self._open()
        self.tier = self._sandbox.tier
        if has_samples and self.tier.is_jail and not self.tier.namespaces:  # Landlock alone lets no rank use its socket
            self.close()
            raise RuntimeError(
                f"this sandbox ({self.tier}) keeps samples from reaching a program: grade projects on a machine with "
                "user namespaces, or as root"
            )

    def run(
        self,
        on_rank: Callable[..., Any],
        *args: Any,
        world_size: int,
        each: Sequence[Sequence[Any]] | None = None,
        forbid: Mapping[str, str] | None = None,
        student_ranks: Collection[int] | None = None,
        made: Made | None = None,
        allow: Collection[str] | None = None,
    ) -> list[Any]:
        """Run `on_rank(student, *args, *each[rank])` on every rank, where `student` is the module; return the values.

        The ranks are real, on Gloo, whose groups carry out only operations in `allow`.

        Raises:
            StudentFailed: a rank raised, died or hung, used another operation, or time is used up.
        """
        setting = _setting(forbid, student_ranks, made)
        options = {"world_size": world_size, "each": each, "backend": "gloo", "allow": allow}
        return self._on_ranks(on_rank, setting, args, **options).values

    def torchrun(
        self,
        on_rank: Callable[..., Any],
        *args: Any,
        world_size: int,
        each: Sequence[Sequence[Any]] | None = None,
        forbid: Mapping[str, str] | None = None,
        student_ranks: Collection[int] | None = None,
        made: Made | None = None,
    ) -> list[Any]:
        """Do the same under torch's own elastic agent, also in the sandbox; some seconds slower.

        Raises:
            StudentFailed: as for `run`.
        """
        limit_s = self._limit_s() * (1 - _AGENT_ENDS)
        _pickle_by_value(on_rank)
        setting = _setting(forbid, student_ranks, made)
        in_agent = (self._cells, setting, on_rank, args, each, world_size, limit_s)
        (returned,) = self._launch(call_under_agent, *in_agent, world_size=1).values
        try:
            failures.raise_described(returned, self._sources)
        except StudentFailed as failed:
            if failed.outcome in (Outcome.HUNG, Outcome.TIME_LIMIT):
                self._call_s = min(self._call_s, self._after_a_hang_s * crowding())
            raise
        return failures.values_of(returned, world_size)

    def emulated(
        self,
        on_rank: Callable[..., Any],
        *args: Any,
        world_size: int,
        each: Sequence[Sequence[Any]] | None = None,
        cluster: Cluster | str = "dgx-h100",
        allow: Collection[str] | None = None,
        compute: str = "none",
        faults: Sequence[Fault] = (),
        forbid: Mapping[str, str] | None = None,
        student_ranks: Collection[int] | None = None,
        made: Made | None = None,
        memory: bool = False,
        keeps_exchanges: bool = False,
    ) -> Run:
        """Do the same on an emulated cluster; the run has the `values`, and the `timeline` of what went over the wire.

        The conductor itself sees operations, their bytes, peers and order, and carries out only operations in `allow`.
        When a rank worked, and what it waited for, is what the rank itself reports. What ranks pass to each other off
        the wire is not on the timeline: compare `timeline.bytes_sent(rank)` with what the algorithm must send, and add
        a run with a `SilentError` of `worldsize.faults`, which shows in the result where the data went over the wire.
        With `memory`, the run's `grown_bytes` are the kernel's word; its `memory` is what the ranks themselves count.
        With `keeps_exchanges`, the run's `exchanges` are what went over the wire, body by body: the conductor's word.

        Raises:
            StudentFailed: a rank raised, died or hung, used another operation, or time is used up.
        """
        options = {"cluster": cluster, "allow": allow, "compute": compute, "faults": faults, "memory": memory}
        options["keeps_exchanges"] = keeps_exchanges
        setting = _setting(forbid, student_ranks, made)
        return self._on_ranks(on_rank, setting, args, world_size=world_size, each=each, **options)

    def on_paper(
        self,
        on_rank: Callable[..., Any],
        *args: Any,
        world_size: int,
        cluster: Cluster | str,
        small: Sequence[Any],
        small_world_size: int,
        forbid: Mapping[str, str] | None = None,
    ) -> PaperRun:
        """Run `on_rank(student, *args)` on paper, as one of `world_size` ranks of a cluster.

        Its record is made in the student's process, so it is a claim. Therefore the same function also runs with data,
        as `on_rank(student, *small)` on `small_world_size` emulated ranks, and on paper with these arguments: the
        conductor's bytes and calls and the kernel's memory must bear out what the paper says.

        Raises:
            CheckFailed: the two differ.
            StudentFailed: as for `run`, and where what came back is no record.
        """
        found = cluster_of(cluster, world_size)

        def claim(of: Sequence[Any], num_ranks: int) -> PaperRun:
            job = (self._cells, _setting(forbid, None, None), on_rank, of, num_ranks, found)
            return claimed(lambda ranks: self._record(job, ranks), num_ranks, found)

        options = {"cluster": found, "compute": "flops", "memory": True, "forbid": forbid}
        expect_agreement(
            claim(small, small_world_size), self.emulated(on_rank, *small, world_size=small_world_size, **options)
        )
        return claim(args, world_size)

    @property
    def num_gpus(self) -> int:
        """The number of GPUs visible inside."""
        self._sandbox.forkserver.wait_until_warm()
        return self._sandbox.forkserver.num_gpus

    def program(self, name: str) -> SubmittedProgram:
        """The submitted program of that name."""
        return SubmittedProgram(self._code.programs[name], self._shown, self._launch, self._limit_s, self._sources)

    def restarted(self, on_rank: Callable[..., Any], *args: Any) -> RestartedFunction:
        """`on_rank(student, folder, spec, *args)` as a training program; the lab has to import `worldsize.bench`."""
        _pickle_by_value(on_rank)
        setting = _setting(None, None, None)

        def start(*of_start: Any, **options: Any) -> Run:
            options["sentences"] = self._forms(setting)
            return self._launch(call_on_rank, self._cells, setting, on_rank, *of_start, *args, **options)

        return RestartedFunction(start, self._launch, lambda: self._sandbox.sweep(), self._shown)

    def reference(self, name: str) -> SubmittedProgram:
        """Our own solution to that program, in the same sandbox: its time there is what the task takes."""
        return SubmittedProgram(self._code.references[name], self._shown, self._launch, self._limit_s, self._sources)

    def _record(self, job: Sequence[Any], ranks: Sequence[int]) -> Sequence[Any]:
        """Run a job on paper; return the values of these ranks."""
        _pickle_by_value(job[2])
        options = {"world_size": len(ranks), "backend": "gloo", "sentences": self._forms(job[1])}
        return self._launch(record_on_rank, *job, list(ranks), **options).values

    def _on_ranks(self, on_rank: Callable[..., Any], setting: Setting, args: Sequence[Any], **options: Any) -> Run:
        _pickle_by_value(on_rank)
        options["sentences"] = self._forms(setting)
        launched = partial(self._launch, call_on_rank, self._cells, setting, on_rank, *args, **options)
        if setting.student_ranks == frozenset():
            return self._blameless(launched)
        self.last_run = None
        run = launched()
        self.last_run = launched if options["world_size"] > 1 else None  # an audit compares ranks
        return run

    def _blameless(self, launched: Callable[[], Run]) -> Run:
        """Run without the student's code; earlier hangs do not shorten its time.

        Raises:
            RuntimeError: it failed, which is a fault of the judge's, or of its machine.
            StudentFailed: the submission's time is used up.
        """
        self._limit_s()
        call_s, self._call_s = self._call_s, _OWN_TIMES * self._code.call_s
        try:
            return launched()
        except StudentFailed as failed:
            if self._left_s <= 0:
                raise
            raise RuntimeError(f"ranks without the student's code failed: {failed}") from None
        finally:
            self._call_s = call_s

    def _forms(self, setting: Setting) -> list[str]:
        """The forms of error messages that may be shown of ranks with this setting."""
        return [*self._sentences, *setting.forbid.values()]

    def _limit_s(self, taken_s: float = 0.0) -> float:
        left_s = self._left_s - taken_s
        if left_s <= 0:
            raise StudentFailed(Outcome.TIME_LIMIT, _USED_UP)
        return min(self._call_s, left_s)

    def _launch(
        self,
        function: Callable[..., Any],
        *args: Any,
        world_size: int,
        sentences: Collection[str] = (),
        kept: str = "",
        **options: Any,
    ) -> Run:
        limit_s, start_s = self._limit_s(), time.monotonic()
        _pickle_by_value(function)
        try:
            self._reopen_if_dead()  # in the time of the student, whose code has ended the last one
            limit_s = self._limit_s(time.monotonic() - start_s)
            options |= {"forkserver": self._sandbox.forkserver, "quota": _quota(world_size)}
            run = launch(Spec(function, args, world_size=world_size, timeout_s=limit_s, echo=False, **options))
            self.num_returned += 1
            return run
        except RankFailed as error:
            raise failures.of_failure(error, self._sources, sentences) from None
        except RunTimeout as error:
            self._call_s = min(self._call_s, self._after_a_hang_s * crowding())
            self._sandbox.close()  # code that hangs may also survive a sweep
            raise failures.of_timeout(error, self._sources) from None
        finally:
            self._left_s -= time.monotonic() - start_s
            self._sandbox.sweep(kept)

    def audited(self, run: Callable[..., Run]) -> str:
        """Do a `last_run` again with an audit; return what it found in the student's lines, in words, or nothing.

        Raises:
            StudentFailed: the run failed, or time is used up.
        """
        if not self.tier.namespaces:  # then /tmp is not the jail's own
            return ""
        run(memory=False, keeps_exchanges=False, env=audits.ENV, kept=audits.NOTES)
        claims = self._launch(findings_on_rank, audits.ENV[FOLDER], audits.MOST_CLAIMS, world_size=1, backend="gloo")
        return audits.finding_in(claims.values[0], self._sources)

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._sandbox.close()
        if self._shown:
            shutil.rmtree(self._shown, ignore_errors=True)

    def _open(self) -> Sandbox:
        shown = [self._shown] if self._shown else ()
        code = self._code
        limits = limits_with(code.sandbox, bool(code.devices))
        return Sandbox(limits, code.preload, shown, code.devices, code.hidden)

    def _reopen_if_dead(self) -> None:
        if not self._sandbox.forkserver.is_alive:
            self._sandbox.close()
            self._sandbox = self._open()
        self._sandbox.forkserver.wait_until_warm()


def _setting(forbid: Mapping[str, str] | None, student_ranks: Collection[int] | None, made: Made | None) -> Setting:
    return Setting(dict(forbid or {}), None if student_ranks is None else frozenset(student_ranks), made)


def _quota(world_size: int) -> Quota:
    return Quota(min(_VALUE_BYTES, _VALUES_BYTES // world_size), _PRINTED_BYTES) if world_size else Quota()


def _pickle_by_value(function: Callable[..., Any]) -> None:
    """Pickle functions of a lab's checks and of the jail by value: the sandbox has none of these files."""
    for name in (function.__module__, *_PICKLED_BY_VALUE):
        cloudpickle.register_pickle_by_value(sys.modules[name])
