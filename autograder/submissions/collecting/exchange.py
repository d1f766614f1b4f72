"""Copying assignments between `labs/`, nbgrader's exchange and `submitted/`, including the programs of a project.

`CourseDirectory.ignore` names every program, because nbgrader copies all other files to students and into feedback, and
solutions and hidden checks are in the same folders. The programs of a project must be released and submitted, so they
are not ignored here, and only here.

Students can write to the folder that they submit. A link in it may point to a file that only the instructor can read, a
pipe never ends, and all of it may change while it is copied.
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
_MAX_DEPTH = 20  # of nested folders, each of which is held open
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # do not follow links, do not wait for a pipe's writer


def ignored(coursedir: Any) -> list[str]:
    """The patterns of files that are not copied when an assignment is released or submitted."""
    if not is_project(coursedir.assignment_id):
        return coursedir.ignore
    return [pattern for pattern in coursedir.ignore if pattern != PROGRAMS]


@contextmanager
def _handing_over(coursedir: Any) -> Iterator[None]:
    """Make nbgrader ignore only the patterns in `ignored`, within the block."""
    usual = coursedir.ignore
    coursedir.ignore = ignored(coursedir)
    try:
        yield
    finally:  # the formgrader uses this object later to generate assignments
        coursedir.ignore = usual


class Release(ExchangeReleaseAssignment):
    """nbgrader's release, extended to release a project's programs."""

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy an assignment to the exchange; raises like nbgrader's own."""
        with _handing_over(self.coursedir):
            super().do_copy(src, dest, log)


class Fetch(ExchangeFetchAssignment):
    """nbgrader's fetch, extended to fetch a project's programs."""

    def do_copy(self, src: str, dest: str) -> None:
        """Copy an assignment to a student's folder; raises like nbgrader's own."""
        with _handing_over(self.coursedir):
            super().do_copy(src, dest)


class Submit(ExchangeSubmit):
    """nbgrader's submission, extended to submit a project's programs."""

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy a student's folder to the exchange; raises like nbgrader's own."""
        with _handing_over(self.coursedir):
            super().do_copy(src, dest, log)


class ReleaseFeedback(ExchangeReleaseFeedback):
    """nbgrader's release of feedback, which continues if one student's folder cannot be released."""

    def copy_files(self) -> None:
        """Release the feedback of every student, as far as possible.

        Raises:
            ExchangeError: some could not be released; the text names their folders.
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
    """Copy the plain files and folders of a student's folder, within nbgrader's limits; log everything else in it.

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
    """A copier of one submission, which works on open file descriptors, because paths may change meanwhile."""

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
        mode = stat.S_IMODE(os.fstat(opened).st_mode) & 0o777 | 0o700  # so that the copy can be removed
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
