"""Judging and measuring a class's programs, one at a time per set of GPUs; each result is written as it arrives.

The batch's folder has one folder per student: `report.json` is the judge's report, `result.json` the measurement in its
published schema, and `measured.json` the same with a fingerprint of its inputs. An interrupted batch resumes where it
stopped: within a measurement, at the interrupted timing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from autograder.course import beside
from autograder.files import write_whole
from autograder.grading.audit_log import engine_sha256
from autograder.grading.engines import Engine
from autograder.grading.lab import Judged, Lab
from autograder.judging.judge.measuring import PROGRAM, Measurement, Progress, Settings, first_failure
from autograder.submissions import Malformed, submitted_files
from autograder.submissions.student_code import given_imports
from worldsize.bench import Point, Result

TOLERANCE = 2e-3  # relative to the distance that the weights moved; summing in a different order changes them by 1e-6
_SAMPLES = "open_samples"  # the function that programs of the benchmark call
OnProgress = Callable[[str, str, int, int], None]  # student, current task, steps done, total steps


class Kept(BaseModel):
    """A program's measurement and the fingerprint of its inputs; `malformed` says why there is no measurement."""

    fingerprint: str
    malformed: str = ""
    fault: str = ""
    tier: str = ""
    result: Result | None = None


@dataclass(frozen=True)
class SubmissionOutcome:
    """What is known of a submission: the judge's report, if one was asked for, and the measurement."""

    student: str
    judged: Judged | None
    kept: Kept

    @property
    def fault(self) -> str:
        """A failure of the grader or the machine; empty if there was none."""
        return (self.judged.fault if self.judged else "") or self.kept.fault

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.fault:
            return f"not graded: {self.fault}"
        if self.kept.malformed or self.kept.result is None:
            return f"malformed: {self.kept.malformed}"
        wrongs = [self.judged.verdict] if self.judged and self.judged.malformed else []
        if failure := first_failure(self.kept.result.timings):
            wrongs.append(failure)
        elif not has_right_weights(self.kept.result):
            wrongs.append("its final weights differ from those of one process, so its times do not count")
        return "; ".join(wrongs) or "measured"


def has_right_weights(result: Result) -> bool:
    """Whether every training that exchanged gradients ended with the same weights as training on one process."""
    errors = [one.weights_error for one in result.timings if one.is_synchronised]
    return bool(errors) and all(error is not None and error <= TOLERANCE for error in errors)


def point_of(result: Result, world_size: int, scaling: Literal["strong", "weak"] = "strong") -> Point | None:
    """The measured point for a number of ranks if there is one, otherwise the emulated point."""
    found = {one.kind: one for one in result.points if (one.scaling, one.world_size) == (scaling, world_size)}
    return found.get("real") or found.get("emulated")


@dataclass(frozen=True)
class MeasuredLab(Lab):
    """An assignment whose judgements a batch keeps with its measurements."""

    kept_in: Path = Path()

    def _kept_path(self, student: str) -> Path:
        return self.kept_in / student / "report.json"


@dataclass(frozen=True)
class Batch:
    """A class whose programs are measured, and judged where `is_graded`."""

    lab: MeasuredLab
    settings: Settings
    is_graded: bool = True

    def refuse_unmeasurable(self) -> None:
        """Raise ValueError unless the assignment asks for a program that trains on the benchmark's samples."""
        self.lab.refuse_missing()
        if PROGRAM not in beside(self.lab.released_folder):
            raise ValueError(f"{self.lab.name} asks for no {PROGRAM}, so there is nothing to measure.")
        if _SAMPLES not in (self.lab.released_folder / PROGRAM).read_text(encoding="utf-8"):
            raise ValueError(
                f"{self.lab.name} asks for a {PROGRAM} that does not train on `bench.{_SAMPLES}`, and only such "
                f"programs are measured; `autograder grade {self.lab.name}` judges it."
            )

    def refused(self, students: Sequence[str]) -> list[SubmissionOutcome]:
        """Say why folders of these students, or of all, cannot be measured."""
        refused = self.lab.refused(students)
        return [
            SubmissionOutcome(student, judged, Kept(fingerprint="", fault=judged.fault))
            for student, judged in refused.items()
        ]

    def done(self, student: str) -> SubmissionOutcome | None:
        """What is known of a submission, if it is complete and about the files as they are now; otherwise None."""
        judged = self.lab.kept(student) if self.is_graded else None
        kept = self._kept(student)
        return SubmissionOutcome(student, judged, kept) if kept and (judged or not self.is_graded) else None

    def run(self, student: str, engine: Engine, again: bool, on_progress: OnProgress) -> SubmissionOutcome:
        """The outcome of one submission, after doing what is missing of it; a fault of ours is recorded in it."""
        judged = None
        if self.is_graded:
            on_progress(student, "graded", 0, 0)
            judged = (None if again else self.lab.kept(student)) or self.lab.judge(student, engine)
        kept = None if again else self._kept(student)
        return SubmissionOutcome(student, judged, kept or self._measure(student, engine, again, on_progress))

    def _measure(self, student: str, engine: Engine, again: bool, on_progress: OnProgress) -> Kept:
        kept = Kept(fingerprint=self._fingerprint(student))
        journal = self._folder(student) / f"timings-{kept.fingerprint[:12]}.jsonl"
        if again:
            journal.unlink(missing_ok=True)
        try:
            source = submitted_files.read_program(self.lab.submitted_file(student).with_name(PROGRAM))
            for message in engine.measure(self._job(source), journal):
                if isinstance(message, Progress):
                    on_progress(student, "measured", message.done, message.total)
                else:
                    kept = kept.model_copy(update={"tier": message.tier, "result": message.result})
        except Malformed as reason:
            kept = kept.model_copy(update={"malformed": str(reason)})
        except Exception as error:
            return kept.model_copy(update={"fault": f"{type(error).__name__}: {error}"})
        self._keep(student, kept)
        journal.unlink(missing_ok=True)
        return kept

    def _keep(self, student: str, kept: Kept) -> None:
        path = self._folder(student) / "result.json"
        if kept.result:
            write_whole(path, kept.result.model_dump_json(indent=1))
        else:
            path.unlink(missing_ok=True)  # the result of a program submitted earlier
        write_whole(self._folder(student) / "measured.json", kept.model_dump_json())

    def _job(self, source: str) -> Measurement:
        limits = self.lab.limits
        return Measurement(
            program=source,
            settings=self.settings,
            preload=tuple(given_imports(self.lab.release)),
            call_s=limits.call_s,
            total_s=limits.total_s,
            allow_untrusted=limits.allow_untrusted,
        )

    def _kept(self, student: str) -> Kept | None:
        try:
            found = Kept.model_validate_json((self._folder(student) / "measured.json").read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.fingerprint == self._fingerprint(student) else None

    def _fingerprint(self, student: str) -> str:
        """A hash of the program, the settings of the measurement, and the measuring code."""
        try:
            source = submitted_files.read_program(self.lab.submitted_file(student).with_name(PROGRAM))
        except (Malformed, OSError) as reason:  # measuring it reports the reason
            source = f"malformed: {reason}"
        basis = [source, self.settings, self.lab.limits, engine_sha256()]
        return hashlib.sha256(repr(basis).encode()).hexdigest()

    def _folder(self, student: str) -> Path:
        return self.lab.kept_in / student


def run_batch(
    batch: Batch, students: Sequence[str], engine: Engine, again: bool, on_progress: OnProgress
) -> Iterator[SubmissionOutcome]:
    """Each submission's outcome as it arrives, first those that are done already; `again` redoes these too."""
    done = {} if again else {student: found for student in students if (found := batch.done(student))}
    yield from done.values()
    with ThreadPoolExecutor(engine.jobs) as pool:
        asked = [pool.submit(batch.run, one, engine, again, on_progress) for one in students if one not in done]
        try:
            for future in as_completed(asked):
                yield future.result()
        except BaseException:
            for one in asked:
                one.cancel()
            engine.abort()  # otherwise this would wait for running tasks
            raise


def read_batch(folder: Path) -> dict[str, Result]:
    """The results in a batch's folder, by student; incomplete and unrelated files are ignored."""
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        try:
            found[path.parent.name] = Result.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue
    return found
