"""Collectors that record the time of each submission, and continue if one student's files cannot be collected."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nbgrader.exchange import abc
from nbgrader.exchange.default import ExchangeCollect
from traitlets import Dict

from autograder.course import beside, handed_in, notebook_of
from autograder.files import file_sha256
from autograder.submissions import Malformed
from autograder.submissions.collecting.exchange import copy_plain
from autograder.submissions.regrade_requests import REQUEST
from autograder.submissions.submitted_files import grade_id, read_notebook
from autograder.tables.collected import note_collected, read_collected

_SLACK = timedelta(minutes=10)  # between the time in a submission's name in the exchange and its last file


class StudentByStudent(abc.ExchangeCollect):
    """Base class of collectors that handle each student's files separately and record the time of each submission."""

    student = "username"  # the key of the student in a collector's record
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
        """Record the time of the submission that was just collected; unchanged work keeps its earlier time."""
        coursedir: Any = self.coursedir
        root, name = Path(coursedir.root), coursedir.assignment_id
        asks = Path(coursedir.format_path(coursedir.submitted_directory, student, name), REQUEST)
        is_same = self._work_before and self._work_before == self._work_of(student)
        if is_same and os.path.lexists(asks) and (name, student) in read_collected(root):
            self.log.info("%s asks for a regrade of unchanged work, which keeps its time", student)
            return
        note_collected(root, name, student, submitted, source)

    def _work_of(self, student: str) -> dict[str, str | None]:
        """Hashes of the graded files of a student, so that a request for a regrade does not make work late."""
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
    """Restore a folder if the block fails, because nbgrader removes the earlier work before it copies the new."""
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
    """A hash of a file; for a notebook, of its cells' sources, which do not change when it is opened and saved."""
    try:
        cells = read_notebook(path).cells if path.suffix == ".ipynb" else None
    except Malformed:
        cells = None
    if cells is None:
        return file_sha256(path)
    text = json.dumps([(cell.cell_type, grade_id(cell), cell.source) for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()


class Collect(StudentByStudent, ExchangeCollect):
    """nbgrader's collector, extended to record the time of each submission; no student can stop or mislead it.

    Unchanged work that is submitted again with a request for a regrade keeps its time.

    Everybody can write to the exchange's inbound folder, so only plain files and folders are copied from there.
    """

    def init_src(self) -> None:
        """Find the submissions; raises like nbgrader's own."""
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"]]

    def _path_to_record(self, path: str) -> dict:
        """Parse the name of a submission; the result has no username if it is not a student's folder."""
        try:
            name = os.path.basename(path)
            name.encode()  # it is recorded in UTF-8
            record = super()._path_to_record(path)
            if stat.S_ISDIR(os.lstat(path).st_mode) and record["username"]:
                return record
        except (OSError, ValueError, OverflowError, TypeError):  # all but OSError: the name has no valid time
            pass
        self.log.warning(
            "%r is left out of what is collected: it is not a folder named after a student and a time", path
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
