"""The audit log: what was graded, from which files, under which conditions, so that any score can be reproduced.

Next to gradebook.db, `gradebook-audit.jsonl` gets one line for every grading and is append-only. Each entry has a hash
of itself and of the one before: a line that was edited or removed is found, but not a log that somebody rewrote from
some line to its end; to detect that too, keep the last hash, which `autograder audit` prints, elsewhere.
`gradebook-audit/` keeps the graded files under their hashes, so that an older submission can be judged again. Both hold
hidden checks and students' work: only their owner may read them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Self

from nbgrader.coursedir import CourseDirectory
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

import autograder
import worldsize
from autograder.course import graded_files, programs_of
from autograder.files import MAX_BYTES, file_sha256
from autograder.judging.report import CheckResult, Outcome, Report
from autograder.submissions.class_folders import course_glob
from worldsize.files import replace_file

LOG = "gradebook-audit.jsonl"
KEPT = "gradebook-audit"
MARK = "worldsize_audit"  # metadata of a graded notebook: the entry about it
_MAX_REASON_CHARS = 2000
_CHUNK_BYTES = 1 << 16


class Verdict(StrEnum):
    """How a grading ended."""

    GRADED = "graded"
    MALFORMED = "malformed submission"
    FAULT = "grader fault"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Inputs(_Record):
    """SHA-256 of everything that a score depends on; None for anything that is not a plain file."""

    submission: str | None
    release: str | None
    checks: str | None
    engine: str  # every file of autograder and worldsize
    programs: dict[str, str | None] = {}  # by name: those next to the notebook, and our solutions to them

    def of(self, kind: str) -> str | None:
        """The hash of a file by its kind, such as "submission", "checks" or "submitted/train.py"."""
        return self.programs.get(kind) if "/" in kind else getattr(self, kind)


class Versions(_Record):
    """The programs that graded; `commit` only if the engine is in a git checkout."""

    worldsize: str
    commit: str | None
    python: str
    torch: str
    nbgrader: str
    machine: str


class RecordedLimits(_Record):
    """What bounded the student's code, in seconds, and whether a machine without a sandbox was allowed.

    `sandbox` holds the sandbox's own limits where they were not the usual ones.
    """

    call_s: float
    total_s: float
    allow_untrusted: bool
    sandbox: dict[str, int] = {}

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an empty `sandbox`: older entries, whose hashes cover all fields, have none."""
        return {name: value for name, value in serialize(self).items() if name != "sandbox" or value}


class CheckScore(_Record):
    """How one check ended and what it earned."""

    name: str
    cell: str
    outcome: Outcome
    earned: float
    points: float

    @classmethod
    def of(cls, check: CheckResult) -> Self:
        """The part of a result that belongs in the log: no message, because a student may have written it."""
        return cls(name=check.name, cell=check.cell, outcome=check.outcome, earned=check.earned, points=check.points)


class AuditEntry(_Record):
    """One grading. `sha256` is the hash of everything else, `previous` that of the entry before."""

    number: int
    time: datetime
    assignment: str
    student: str
    notebook: str
    verdict: Verdict
    reason: str
    score: float | None
    checks: list[CheckScore]
    inputs: Inputs
    versions: Versions
    limits: RecordedLimits
    tier: str | None
    seed: int | None
    duration_s: float
    previous: str
    sha256: str = ""

    def computed_sha256(self) -> str:
        """The hash that the entry must have."""
        rest = self.model_dump(mode="json", exclude={"sha256"})
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@dataclass
class Grading:
    """What is known so far about a grading that is running."""

    report: Report | None = None
    malformed: str = ""
    entry: AuditEntry | None = field(default=None, init=False)  # once it has ended


@contextmanager
def grading(coursedir: CourseDirectory, names: dict[str, str], limits: RecordedLimits) -> Iterator[Grading]:
    """Record one grading in the course's log, however it ends; `names` as nbgrader gives them to preprocessors."""
    root, start = Path(coursedir.root), datetime.now(UTC)
    kept = {kind: keep(root, path) for kind, path in graded_files(coursedir, names).items()}
    programs = {kind: keep(root, path) for kind, path in programs_of(coursedir, names).items()}
    inputs = Inputs(**kept, engine=engine_sha256(), programs=programs)
    now, fault = Grading(), ""
    try:
        yield now
    except BaseException as error:  # an interrupt too: then nothing is known
        fault = str(error) or type(error).__name__
        raise
    finally:
        verdict = Verdict.FAULT if fault else Verdict.MALFORMED if now.malformed else Verdict.GRADED
        report = now.report
        now.entry = append(
            root / LOG,
            time=start,
            assignment=names["assignment"],
            student=names["student"],
            notebook=names["notebook"],
            verdict=verdict,
            reason=(fault or now.malformed)[:_MAX_REASON_CHARS],
            score={Verdict.FAULT: None, Verdict.MALFORMED: 0.0}.get(verdict, report and report.score),
            checks=[CheckScore.of(check) for check in report.checks] if report else [],
            inputs=inputs,
            versions=versions(),
            limits=limits,
            tier=report and report.tier,
            seed=report and report.seed,
            duration_s=(datetime.now(UTC) - start).total_seconds(),
        )


def append(log: Path, **content: object) -> AuditEntry:
    """Append an entry with this content to the log, as one line that is on disk when this returns.

    Raises:
        OSError: it could not be written whole.
    """
    descriptor = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "rb+") as file:  # buffered, so that a partial write is completed
        fcntl.flock(file, fcntl.LOCK_EX)  # several gradings may end at once
        last, is_torn = _last_entry(file)
        entry = AuditEntry.model_validate(
            {**content, "number": last.number + 1 if last else 1, "previous": last.sha256 if last else ""}
        )
        entry = entry.model_copy(update={"sha256": entry.computed_sha256()})
        file.write(b"\n" * is_torn + f"{entry.model_dump_json()}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    return entry


def _last_entry(file: BinaryIO) -> tuple[AuditEntry | None, bool]:
    """The last entry of a log, read from its end, and whether the last line was only half written."""
    at, tail = file.seek(0, os.SEEK_END), b""
    while at:
        start = max(0, at - _CHUNK_BYTES)
        file.seek(start)
        tail, at = file.read(at - start) + tail, start
        whole = tail.split(b"\n")[bool(at) :]  # the first line begins before the chunk
        if entry := next(
            (entry for line in reversed(whole) if (entry := _parsed(line.decode(errors="replace")))), None
        ):
            return entry, not tail.endswith(b"\n")
    return None, bool(tail) and not tail.endswith(b"\n")


def read(log: Path) -> tuple[list[AuditEntry], list[str]]:
    """Read a log's entries, and describe each altered line; a missing log has no entries."""
    entries: list[AuditEntry] = []
    problems: list[str] = []
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        entry = _parsed(line)
        if entry is None:
            problems.append(f"{log}, line {number}: this is not an entry; it was edited or only half written.")
            continue
        before = entries[-1].sha256 if entries else ""
        if entry.previous != before:
            problems.append(f"{log}, line {number}: the previous entry is missing, moved or changed.")
        if entry.sha256 != entry.computed_sha256():
            problems.append(f"{log}, line {number}: entry {entry.number} was edited: its hash does not match.")
        entries.append(entry)
    return entries, problems


def missing_entries(coursedir: CourseDirectory, entries: list[AuditEntry]) -> list[str]:
    """A sentence for each graded notebook whose entry is no longer in the log, as when its end was deleted."""
    known = {entry.sha256 for entry in entries}
    paths = course_glob(
        coursedir, str(Path(coursedir.format_path(coursedir.autograded_directory, "*", "*"), "*.ipynb"))
    )
    marks = {path: json.loads(path.read_bytes())["metadata"].get(MARK) for path in paths}
    return [
        f"{path} was graded as entry {mark['number']}, which the log does not hold."
        for path, mark in marks.items()
        if mark and mark["sha256"] not in known
    ]


def latest(entries: list[AuditEntry]) -> dict[tuple[str, str, str], AuditEntry]:
    """The last entry about each (assignment, student, notebook)."""
    return {(entry.assignment, entry.student, entry.notebook): entry for entry in entries}


def changed_inputs(coursedir: CourseDirectory, entry: AuditEntry) -> list[str]:
    """The files of a grading that have changed since: "submission", "checks", "submitted/train.py", ..."""
    names = entry.model_dump(include={"assignment", "student", "notebook"})
    now = graded_files(coursedir, names) | programs_of(coursedir, names)
    hashes = {kind: file_sha256(path) for kind, path in now.items()}
    return [kind for kind, sha256 in hashes.items() if sha256 and sha256 != entry.inputs.of(kind)]


def keep(root: Path, path: Path) -> str | None:
    """Keep a copy of a plain file, unless it is larger than any submission that is read; return its hash.

    An incomplete copy, as after a power failure, is replaced.
    """
    sha256 = file_sha256(path)
    kept = root / KEPT / str(sha256)
    if sha256 and path.stat().st_size <= MAX_BYTES and file_sha256(kept) != sha256:
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(kept, path.read_bytes())
    return sha256


@cache
def engine_sha256() -> str:
    """A hash of the names and contents of all sources and templates of autograder and worldsize, at the first call.

    This process grades with these sources, even if the files change later.
    """
    whole = hashlib.sha256()
    for package in (autograder, worldsize):
        (folder,) = package.__path__
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                whole.update(f"{package.__name__}/{path.relative_to(folder).as_posix()} {file_sha256(path)}\n".encode())
    return whole.hexdigest()


@cache
def versions() -> Versions:
    """The versions of the programs that grade now."""
    return Versions(
        worldsize=version("worldsize"),
        commit=_commit(),
        python=platform.python_version(),
        torch=version("torch"),
        nbgrader=version("nbgrader"),
        machine=platform.platform(),
    )


def _commit() -> str | None:
    (folder,) = autograder.__path__
    if not Path(folder).with_name(".git").exists():  # the folder above may be another project's checkout
        return None
    try:
        asked = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None


def _parsed(line: str) -> AuditEntry | None:
    try:
        return AuditEntry.model_validate_json(line)
    except ValidationError:
        return None
