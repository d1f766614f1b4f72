"""Late penalties from the collector's time, by a policy in nbgrader_config.py.

nbgrader takes the time of a submission from `timestamp.txt`, which lies among the student's own files. Here it counts
only where `c.Policy.trust_timestamps` says so. Instead the collectors record the time of what they collect in
`collected.csv` at the root of the course, where no student writes: `nbgrader collect` from the name of the exchange's
folder, `nbgrader zip_collect` from the group `timestamp` of your `named_regexp`. If you collect by other means, write
that file: a header `assignment,student,submitted`, times like 2026-11-30 23:59:00 UTC; the last row for a student
counts. A submission that no collector recorded is not late.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import abc
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.plugins import FileNameCollectorPlugin, LateSubmissionPlugin
from nbgrader.utils import parse_utc
from traitlets import Bool, Dict, Float, Set, Unicode

from autograder.course import beside, handed_in, notebook_of, settings_of
from autograder.files import file_sha256, neutral
from autograder.submissions.exchange import copy_plain
from autograder.submissions.lms_names import SYSTEMS, UnknownStudent, assignment_in, own_name, read_name
from autograder.submissions.malformed import Malformed
from autograder.submissions.regrade_requests import REQUEST
from autograder.submissions.submitted_notebook import grade_id, read_notebook
from autograder.tables.csv_table import add_row, delimiter_of, text_of
from autograder.tables.roster import class_roster

COLLECTED = "collected.csv"
_COLUMNS = ["assignment", "student", "submitted", "from"]
_ARCHIVES = (".zip", ".gz", ".tar.gz")
_DAY_S = 86400
_transfer: Any = ZipCollectApp._transfer_files
_SLACK = timedelta(minutes=10)  # between the name that a submission gets in the exchange and its last file


class Policy(LateSubmissionPlugin):
    """How many points a late submission loses: by default none.

    A submission is late after the due date and the grace period; then every day begun since the due date counts.
    nbgrader computes a penalty while autograding. `autograder late` computes it again, as is needed after points were
    given by hand or a date has changed.
    """

    grace_minutes = Float(0, min=0, help="Minutes after the due date that cost nothing.").tag(config=True)
    percent_per_day = Float(0, min=0, max=100, help="Percent of the points lost for each day begun.").tag(config=True)
    cap_percent = Float(100, min=0, max=100, help="The most that lateness can cost, in percent.").tag(config=True)
    trust_timestamps = Bool(
        False, help="Trust a timestamp.txt in the submission, where no collector noted a time."
    ).tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """The points to subtract from `score`, or None."""
        if total_seconds_late <= 60 * self.grace_minutes:
            return None
        if self.penalty_method == "zero":
            return score
        percent = min(self.percent_per_day * math.ceil(total_seconds_late / _DAY_S), self.cap_percent)
        return score * percent / 100 or None


class StudentByStudent(abc.ExchangeCollect):
    """What collectors have in common: no student stops the others', and all note when each one handed in."""

    student = "username"  # what one of their records calls it
    _work_before = Dict()

    def copy_files(self) -> None:
        """Copy every submission that can be copied.

        Raises:
            ExchangeError: some could not be copied; the text names the students.
        """
        records, failed = self.src_records, []
        if not records:
            super().copy_files()  # which says so
        for record in records:
            self.src_records = [record]
            self._work_before = self._work_of(record[self.student])
            try:
                with _kept_on_failure(self._folder_of(record[self.student])):
                    super().copy_files()
            except (OSError, RuntimeError, ValueError) as reason:
                self.log.error("%r is not collected: %s", record[self.student], reason)
                failed.append(record[self.student])
        if failed:
            self.fail(f"Not collected: {', '.join(failed)}")

    def note_time(self, student: str, submitted: datetime, source: str) -> None:
        """Record when a student handed in what has just been collected; the same work as before keeps its time."""
        coursedir: Any = self.coursedir
        root, name = Path(coursedir.root), coursedir.assignment_id
        asks = Path(coursedir.format_path(coursedir.submitted_directory, student, name), REQUEST)
        is_same = self._work_before and self._work_before == self._work_of(student)
        if is_same and os.path.lexists(asks) and (name, student) in collected(root):
            self.log.info("%s asks for a regrade of unchanged work, which keeps its time", student)
            return
        note(root, name, student, submitted, source)

    def _work_of(self, student: str) -> dict[str, str | None]:
        """The hashes of what is graded of a student, so that who adds a request for a regrade is not late."""
        coursedir: Any = self.coursedir
        name, folder = coursedir.assignment_id, self._folder_of(student)
        released = Path(coursedir.format_path(coursedir.release_directory, ".", name))
        paths = [handed_in(folder, notebook_of(name)), *(folder / one for one in beside(released))]
        return {path.name: _hash_of_work(path) for path in paths if path.is_file()}

    def _folder_of(self, student: str) -> Path:
        coursedir: Any = self.coursedir
        return Path(coursedir.format_path(coursedir.submitted_directory, student, coursedir.assignment_id))


@contextmanager
def _kept_on_failure(folder: Path) -> Iterator[None]:
    """Put a folder back as it was where the block fails: nbgrader removes the earlier work before it copies the new."""
    with tempfile.TemporaryDirectory() as aside:
        if had := folder.is_dir():
            shutil.copytree(folder, Path(aside, "work"), symlinks=True)
        try:
            yield
        except BaseException:
            if had:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(Path(aside, "work"), folder, symlinks=True)
            raise


def _hash_of_work(path: Path) -> str | None:
    """A hash of what is graded of a file: of a notebook its cells' text, which stays when it is opened and saved."""
    try:
        cells = read_notebook(path).cells if path.suffix == ".ipynb" else None
    except Malformed:
        cells = None
    if cells is None:
        return file_sha256(path)
    text = json.dumps([(cell.cell_type, grade_id(cell), cell.source) for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


class Collect(StudentByStudent, ExchangeCollect):
    """nbgrader's own collector, which records when each submission was handed in; no student can stop or mislead it.

    Work that comes again as it was, beside a request for a regrade, keeps its time.

    Everybody may write to the exchange's inbound folder: only plain files and folders are copied from there.
    """

    def init_src(self) -> None:
        """Find the submissions; raises like nbgrader's own."""
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]

    def _path_to_record(self, path: str) -> dict:
        """What the name of a submission says; no username where it is not a student's folder."""
        try:
            name = os.path.basename(path)
            name.encode()  # it is recorded in UTF-8
            record = super()._path_to_record(path)
            if stat.S_ISDIR(os.lstat(path).st_mode) and record["username"]:
                return record
        except (OSError, ValueError, OverflowError, TypeError):  # the last three: there is no time in it
            pass
        self.log.warning(
            "%r is left out of what is collected: it is not a folder whose name holds a student and a time", path
        )
        return {"username": "", "filename": name, "timestamp": datetime.min}

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy one submission and record its time; raises like `copy_plain`."""
        record = self._path_to_record(src)
        changed = datetime.fromtimestamp(os.lstat(src).st_ctime, UTC).replace(tzinfo=None)
        coursedir: Any = self.coursedir
        copy_plain(coursedir, src, dest, self.log)
        if changed - record["timestamp"] > _SLACK:
            self.log.warning(
                "%s says that it was submitted at %s UTC, but was last changed at %s UTC",
                src,
                record["timestamp"],
                changed,
            )
        self.note_time(record["username"], record["timestamp"], src)


class FileNames(FileNameCollectorPlugin):
    """nbgrader's own reader of file names from an LMS, which also records the times in them.

    It knows the names that Moodle, Canvas and Blackboard give, and takes the students from the course's roster.
    """

    system = Unicode(
        "", help="Whose archives these are: moodle, canvas or blackboard; without one, by `named_regexp`."
    ).tag(config=True)
    time_zone = Unicode("UTC", help="The clock of the times in their names, such as Europe/Berlin.").tag(config=True)
    _assignment = Unicode(None, allow_none=True)  # what the archive calls it, once it was looked for
    _latest = Dict()
    _taken = Set()

    def _match(self, filename: str) -> dict | None:
        """What the name of a file, or of the archive in which a student packed it, says; None for what does not count.

        Raises:
            ValueError: the roster cannot be read, or there is no such system or time zone.
        """
        if not self.system:
            return super()._match(filename)
        if self.system not in SYSTEMS:
            raise ValueError(f"c.FileNames.system: {self.system!r} is none of {', '.join(SYSTEMS)}.")
        app: Any = self.parent
        path = Path(filename)
        inside = path.relative_to(unpacked := Path(app._format_collect_path(app.extracted_directory)))
        if any(part.startswith((".", "__MACOSX")) for part in inside.parts):
            return None
        above = [folder for folder in path.parents[1:] if unpacked in folder.parents]
        if any((folder / path.name).is_file() for folder in above):
            self.log.warning("%s is left out: a file of this name lies further up", filename)
            return None
        archive = _outermost_archive(path, unpacked)
        named = Path(f"{archive.relative_to(unpacked)}{path.suffix}") if archive else inside
        roster = class_roster(Path(app.coursedir.root))
        if self._assignment is None and self.system == "blackboard":
            self._assignment = assignment_in((one.relative_to(unpacked) for one in unpacked.rglob("*")), roster)
        try:
            found = read_name(self.system, named, roster, _zone(self.time_zone), self._assignment or "")
        except UnknownStudent as reason:
            self.log.warning("%s is left out: %s", filename, reason)
            return None
        if not found:
            self.log.warning("%s is left out: %s names no file so that a student hands in", filename, self.system)
            return None
        if found.is_late and not found.time:
            self.log.warning("%s: late, and the name says not when: write the time into %s", found.student, COLLECTED)
        file = own_name(self.system, path.name) if archive else found.file
        return {"student_id": found.student, "file_id": file, "timestamp": found.time and str(found.time)}

    def collect(self, submitted_file: str) -> dict | None:
        """What the name of a file says, like `FileNameCollectorPlugin.collect`; None for a program nobody asked for.

        Ends the command with a sentence where the roster, a record or a setting cannot be used.
        """
        app: Any = self.parent
        try:
            return self._collect(submitted_file)
        except ValueError as reason:
            app.fail("%s", reason)

    def _collect(self, submitted_file: str) -> dict | None:
        found = super().collect(submitted_file)
        app: Any = self.parent
        coursedir = app.coursedir
        if found and submitted_file.endswith(".py"):
            released = coursedir.format_path(coursedir.release_directory, ".", coursedir.assignment_id)
            # two of one name and without times, such as a library beside the program, would stop nbgrader
            if f"{os.path.splitext(found['file_id'])[0]}.py" not in beside(Path(released)):
                return None
        unpacked = Path(app._format_collect_path(app.extracted_directory))
        if found and (archive := _outermost_archive(Path(submitted_file), unpacked)):
            # what a student wrote on a file in an archive of their own says neither whose it is nor of when
            handed_in = super().collect(f"{archive}{Path(submitted_file).suffix}")
            if not handed_in or handed_in["student_id"] != found["student_id"]:
                self.log.warning("%s is left out: it lies in an archive that somebody else handed in", submitted_file)
                return None
            found = {**found, "timestamp": handed_in.get("timestamp")}
        if found and found.get("timestamp"):
            self._read_time(found, Path(submitted_file).name)
        elif found and self.system:  # nbgrader would stop at the second of one name
            key = found["student_id"], found["file_id"]
            if key in self._taken:
                self.log.warning("%s is left out: %s handed in two files of this name", submitted_file, key[0])
                return None
            self._taken = {*self._taken, key}
        return found

    def note_times(self) -> None:
        """Record the times in the names of the files that were handed over."""
        app: Any = self.parent
        for student, (time, name) in self._latest.items():
            note(Path(app.coursedir.root), app.coursedir.assignment_id, student, time, name)

    def _read_time(self, found: dict, name: str) -> None:
        """Remember the time in a file's name; nbgrader itself gets it in a form that it cannot misread."""
        student, time = found["student_id"], _time_in_name(found["timestamp"])
        if time is None:
            self.log.warning("%s: %r is no time, so nothing is late there", name, found["timestamp"])
            found["timestamp"] = None
            return
        found["timestamp"] = f"{time.isoformat(' ')} UTC"
        if student not in self._latest or time >= self._latest[student][0]:  # of several attempts the last one
            self._latest = {**self._latest, student: (time, name)}


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"c.FileNames.time_zone: {name!r} is no time zone; write one such as Europe/Berlin.") from None


def _time_in_name(text: str) -> datetime | None:
    """The time in UTC of `2026-11-29-18-30-59`, which dateutil takes for an offset, and of all that it can read."""
    if found := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)[-_T ](\d\d)-(\d\d)(?:-(\d\d))?", text):
        text = "{}-{}-{} {}:{}:{}".format(*found.groups("00"))
    try:
        return parse_utc(text)
    except (ValueError, OverflowError, TypeError):
        return None


def _outermost_archive(file: Path, unpacked: Path) -> Path | None:
    """The path, without its ending, of the archive below `unpacked` that a file came in; the LMS named that archive."""
    folders = [folder for folder in file.parents if unpacked in folder.parents]
    packed = (one for one in reversed(folders) if any(_beside(one, end).is_file() for end in _ARCHIVES))
    return next(packed, None)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def note(root: Path, assignment: str, student: str, submitted: datetime, source: str) -> None:
    """Add a row to the collectors' record; `submitted` is in UTC. Raises: ValueError, where it cannot be read."""
    collected(root)  # nothing is added to a table that nobody could read afterwards
    cells = (assignment, student, f"{submitted.isoformat(' ')} UTC", str(neutral(source)))  # a student's own file name
    add_row(root / COLLECTED, dict(zip(_COLUMNS, cells, strict=True)))


def collected(root: Path) -> dict[tuple[str, str], datetime]:
    """When each (assignment, student) was handed in, in UTC, by the collectors' record; empty without one.

    Raises:
        ValueError: a row cannot be read; the text says which.
    """
    path = root / COLLECTED
    if not path.exists():
        return {}
    times: dict[tuple[str, str], datetime] = {}
    text = text_of(path)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
    for row in rows:
        if not any(cell and str(cell).strip() for cell in row.values()):
            continue  # a spreadsheet leaves such rows
        try:
            times[row["assignment"].strip(), row["student"].strip()] = parse_utc(row["submitted"].strip())
        except (KeyError, AttributeError, ValueError, OverflowError):
            raise ValueError(
                f"{path}, line {rows.line_num}: write assignment,student,submitted there, "
                "with a time such as 2026-11-30 23:59:00 UTC."
            ) from None
    return times


def submitted_at(coursedir: CourseDirectory, folder: str) -> datetime | None:
    """When the submission in a folder was handed in, in UTC, or None when no trusted source says so.

    Raises:
        ValueError: the collectors' record cannot be read.
    """
    written = Path(folder, "timestamp.txt")
    names = coursedir.format_path(
        coursedir.submitted_directory, "(?P<student>[^/]+)", "(?P<assignment>[^/]+)", escape=True
    )
    found = re.fullmatch(names, folder)
    if not found:  # a copy that nbgrader made: the time only decides whether it is out of date
        return _read_timestamp(written)
    time = collected(Path(coursedir.root)).get((found["assignment"], found["student"]))
    if time or not written.exists():
        return time
    if Policy(config=settings_of(coursedir)).trust_timestamps:
        return _read_timestamp(written)
    coursedir.log.warning(
        "%s was written by the student and is ignored; no collector noted a time in %s, so nothing is late.",
        written,
        COLLECTED,
    )
    return None


def _read_timestamp(path: Path) -> datetime | None:
    """The time in a file; None where there is none, or no time that can be read."""
    if not path.is_file():  # a pipe would never end
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return parse_utc(file.read(100).strip())
    except (OSError, ValueError, OverflowError, TypeError):
        return None


def install() -> None:
    """Make every nbgrader command ask `submitted_at` for the time of a submission, and `zip_collect` record it last."""
    # nbgrader has no plugin for this, and all of its commands must agree
    CourseDirectory.get_existing_timestamp = lambda self, dest_path: submitted_at(self, dest_path)
    ZipCollectApp._transfer_files = lambda self, collected_data: _transfer_and_note(self, collected_data)


def _transfer_and_note(app: ZipCollectApp, collected_data: dict) -> None:
    """Record times once all files are handed over: what fails before leaves the earlier work with its own time."""
    _transfer(app, collected_data)
    plugin: Any = app.collector_plugin_inst
    if isinstance(plugin, FileNames):
        plugin.note_times()
