"""What travels between `labs/`, nbgrader's exchange and `submitted/`: a project's programs too, nobody else's files.

`CourseDirectory.ignore` names every program, because a solution's source and the hidden checks lie beside it, and
nbgrader copies what it does not ignore to students and into feedback. The programs of a project are handed out and
handed in: here, and only here, they are not ignored.

What students hand in lies where they can write. A link there may lead to what only the instructor can read, a pipe
never ends, and all of it may change while it is copied.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger
from typing import Any

from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import (
    ExchangeFetchAssignment,
    ExchangeReleaseAssignment,
    ExchangeReleaseFeedback,
    ExchangeSubmit,
)
from nbgrader.utils import ignore_patterns

from autograder.course import coursedir_of, is_project
from autograder.submissions.class_folders import course_glob

PROGRAMS = "*.py"
_MAX_DEPTH = 20  # of folders in folders, each of which is held open
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # follow no link, and do not wait for a pipe's writer


def ignored(coursedir: Any) -> list[str]:
    """The patterns of what stays behind when an assignment is handed out or in."""
    if not is_project(coursedir.assignment_id):
        return coursedir.ignore
    return [pattern for pattern in coursedir.ignore if pattern != PROGRAMS]


@contextmanager
def _handing_over(coursedir: Any) -> Iterator[None]:
    """Make nbgrader ignore only what `ignored` returns, within the block."""
    usual = coursedir.ignore
    coursedir.ignore = ignored(coursedir)
    try:
        yield
    finally:  # the formgrader goes on using this object, to generate assignments
        coursedir.ignore = usual


class Release(ExchangeReleaseAssignment):
    """nbgrader's own release, which also hands out a project's programs."""

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy an assignment to the exchange; raises like nbgrader's own."""
        with _handing_over(self.coursedir):
            super().do_copy(src, dest, log)


class Fetch(ExchangeFetchAssignment):
    """nbgrader's own fetch, which also fetches a project's programs."""

    def do_copy(self, src: str, dest: str) -> None:
        """Copy an assignment to a student's folder; raises like nbgrader's own."""
        with _handing_over(self.coursedir):
            super().do_copy(src, dest)


class Submit(ExchangeSubmit):
    """nbgrader's own submission, which also hands in a project's programs."""

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy a student's folder to the exchange; raises like nbgrader's own."""
        with _handing_over(self.coursedir):
            super().do_copy(src, dest, log)


class ReleaseFeedback(ExchangeReleaseFeedback):
    """nbgrader's own release of feedback, which no student's folder can stop."""

    def copy_files(self) -> None:
        """Release the feedback of every student for whom that is possible.

        Raises:
            ExchangeError: for some it was not; the text names their folders.
        """
        failed = []
        for folder in map(str, course_glob(coursedir_of(self), self.src_path)):
            self.src_path = glob.escape(folder)
            try:
                super().copy_files()
            except (OSError, ValueError) as reason:
                self.log.error("%s is not released: %s", folder, reason)
                failed.append(folder)
        if failed:
            self.fail(f"Not released: {', '.join(failed)}")


def copy_plain(coursedir: CourseDirectory, src: str, dest: str, log: Logger) -> None:
    """Copy the plain files and folders of a student's folder, within nbgrader's limits; log what else is in it.

    Raises:
        OSError: `src` is itself a link or cannot be read, or `dest` cannot be written; nothing is left at `dest`.
        RuntimeError: `src` holds more than `max_dir_size`; nothing is left at `dest`.
    """
    opened = os.open(src, _READ | os.O_DIRECTORY)
    try:
        _Copier(coursedir, log).folder(opened, src, dest, _MAX_DEPTH)
    except BaseException:
        shutil.rmtree(dest, ignore_errors=True)  # half a submission must not be graded
        raise
    finally:
        os.close(opened)


class _Copier:
    """A copier of one submission, which reads what it holds open: what a name stands for may change."""

    def __init__(self, coursedir: Any, log: Logger):
        self._log = log
        self._is_shared = coursedir.groupshared
        self._max_bytes = self._left_bytes = 1000 * coursedir.max_dir_size
        self._ignore = ignore_patterns(ignored(coursedir), coursedir.include, coursedir.max_file_size, log)

    def folder(self, opened: int, src: str, dest: str, depth: int) -> None:
        """Copy an opened folder; `src` is its path. Raises like `copy_plain`."""
        os.mkdir(dest)
        for name in sorted(os.listdir(opened)):
            path = os.path.join(src, name)
            try:
                if self._ignore(src, [name]):
                    continue
                inner = os.open(name, _READ, dir_fd=opened)
            except OSError as reason:
                self._leave_out(path, "is a link" if reason.errno == errno.ELOOP else str(reason.strerror))
                continue
            try:
                self._entry(inner, path, os.path.join(dest, name), depth - 1)
            finally:
                os.close(inner)
        mode = stat.S_IMODE(os.fstat(opened).st_mode) & 0o777 | 0o700  # so that it can be removed again
        os.chmod(dest, mode | 0o2770 if self._is_shared else mode)

    def _entry(self, opened: int, path: str, dest: str, depth: int) -> None:
        mode = os.fstat(opened).st_mode
        if stat.S_ISREG(mode):
            self._file(opened, dest)
        elif not stat.S_ISDIR(mode):
            self._leave_out(path, "is neither a file nor a folder")
        elif not depth:
            self._leave_out(path, f"lies in more than {_MAX_DEPTH} folders")
        else:
            self.folder(opened, path, dest, depth)

    def _file(self, opened: int, dest: str) -> None:
        status = os.fstat(opened)
        with open(dest, "xb") as copy:
            while chunk := os.read(opened, 1 << 20):
                self._left_bytes -= len(chunk)
                if self._left_bytes < 0:
                    raise RuntimeError(f"It has more than {self._max_bytes} bytes, see CourseDirectory.max_dir_size.")
                copy.write(chunk)
        mode = stat.S_IMODE(status.st_mode) & 0o777 | 0o600
        os.chmod(dest, mode | 0o660 if self._is_shared else mode)
        os.utime(dest, ns=(status.st_mtime_ns, status.st_mtime_ns))

    def _leave_out(self, path: str, reason: str) -> None:
        self._log.warning("%r is left out of what is collected: it %s", path, reason)
