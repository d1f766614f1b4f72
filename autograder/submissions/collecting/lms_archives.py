"""Collecting submissions from the archives of an LMS with `nbgrader zip_collect`, using file names and the roster."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.plugins import FileNameCollectorPlugin
from nbgrader.utils import parse_utc
from traitlets import Dict, Set, Unicode

from autograder.course import beside
from autograder.submissions.collecting.lms_names import SYSTEMS, UnknownStudent, assignment_in, own_name, read_name
from autograder.tables.collected import COLLECTED, note_collected
from autograder.tables.roster import class_roster

_ARCHIVES = (".zip", ".gz", ".tar.gz")
_transfer: Any = ZipCollectApp._transfer_files


class FileNames(FileNameCollectorPlugin):
    """nbgrader's reader of file names from an LMS, extended to record the times in them.

    It knows the names that Moodle, Canvas and Blackboard give to files, and finds students in the course's roster.
    """

    system = Unicode(
        "", help="Whose archives these are: moodle, canvas or blackboard; without one, by `named_regexp`."
    ).tag(config=True)
    time_zone = Unicode("UTC", help="The clock of the times in their names, such as Europe/Berlin.").tag(config=True)
    _assignment = Unicode(None, allow_none=True)  # the assignment's name in the archive, cached
    _latest = Dict()
    _taken = Set()

    def _match(self, filename: str) -> dict | None:
        """Parse the name of a file, or of the student's archive that contained it; None for a file to be ignored.

        Raises:
            ValueError: the roster cannot be read, or there is no such system or time zone.
        """
        if not self.system:
            return super()._match(filename)
        if self.system not in SYSTEMS:
            raise ValueError(f"c.FileNames.system: {self.system!r} is not one of {', '.join(SYSTEMS)}.")
        app: Any = self.parent
        path = Path(filename)
        inside = path.relative_to(unpacked := Path(app._format_collect_path(app.extracted_directory)))
        if any(part.startswith((".", "__MACOSX")) for part in inside.parts):
            return None
        above = [folder for folder in path.parents[1:] if unpacked in folder.parents]
        if any((folder / path.name).is_file() for folder in above):
            self.log.warning("%s is left out: a folder above has a file with this name", filename)
            return None
        archive = outermost_archive(path, unpacked)
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
            self.log.warning("%s is left out: %s does not name a student's file like this", filename, self.system)
            return None
        if found.is_late and not found.time:
            self.log.warning(
                "%s: late, but the name does not say when: write the time into %s", found.student, COLLECTED
            )
        file = own_name(self.system, path.name) if archive else found.file
        return {"student_id": found.student, "file_id": file, "timestamp": found.time and str(found.time)}

    def collect(self, submitted_file: str) -> dict | None:
        """Parse the name of a file, like `FileNameCollectorPlugin.collect`; None for a program that is not asked for.

        Ends the command with a message if the roster, a record or a setting cannot be used.
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
            # two files with the same name and no times, such as a library next to the program, would stop nbgrader
            if f"{os.path.splitext(found['file_id'])[0]}.py" not in beside(Path(released)):
                return None
        unpacked = Path(app._format_collect_path(app.extracted_directory))
        if found and (archive := outermost_archive(Path(submitted_file), unpacked)):
            # names inside a student's own archive identify neither the student nor the time
            handed_in = super().collect(f"{archive}{Path(submitted_file).suffix}")
            if not handed_in or handed_in["student_id"] != found["student_id"]:
                self.log.warning("%s is left out: it is in an archive that somebody else handed in", submitted_file)
                return None
            found = {**found, "timestamp": handed_in.get("timestamp")}
        if found and found.get("timestamp"):
            self._read_time(found, Path(submitted_file).name)
        elif found and self.system:  # nbgrader would stop at a second file of that name
            key = found["student_id"], found["file_id"]
            if key in self._taken:
                self.log.warning("%s is left out: %s handed in two files with this name", submitted_file, key[0])
                return None
            self._taken = {*self._taken, key}
        return found

    def note_times(self) -> None:
        """Record the times in the names of the files that were collected."""
        app: Any = self.parent
        for student, (time, name) in self._latest.items():
            note_collected(Path(app.coursedir.root), app.coursedir.assignment_id, student, time, name)

    def _read_time(self, found: dict, name: str) -> None:
        """Remember the time in a file's name, and pass it to nbgrader in an unambiguous form."""
        student, time = found["student_id"], _time_in_name(found["timestamp"])
        if time is None:
            self.log.warning("%s: %r is not a time, so nothing there counts as late", name, found["timestamp"])
            found["timestamp"] = None
            return
        found["timestamp"] = f"{time.isoformat(' ')} UTC"
        if student not in self._latest or time >= self._latest[student][0]:  # the last of several attempts counts
            self._latest = {**self._latest, student: (time, name)}


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"c.FileNames.time_zone: {name!r} is not a time zone; write one such as Europe/Berlin."
        raise ValueError(message) from None


def _time_in_name(text: str) -> datetime | None:
    """Parse a time such as `2026-11-29-18-30-59`, which dateutil would misread, or any time that dateutil can parse."""
    if found := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)[-_T ](\d\d)-(\d\d)(?:-(\d\d))?", text):
        text = "{}-{}-{} {}:{}:{}".format(*found.groups("00"))
    try:
        return parse_utc(text)
    except (ValueError, OverflowError, TypeError):
        return None


def outermost_archive(file: Path, unpacked: Path) -> Path | None:
    """The path, without suffix, of the outermost archive below `unpacked` that contained a file; the LMS named it."""
    folders = [folder for folder in file.parents if unpacked in folder.parents]
    packed = (one for one in reversed(folders) if any(_beside(one, end).is_file() for end in _ARCHIVES))
    return next(packed, None)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def install() -> None:
    """Make `nbgrader zip_collect` record times after collecting all files."""
    ZipCollectApp._transfer_files = lambda self, collected_data: _transfer_and_note(self, collected_data)


def _transfer_and_note(app: ZipCollectApp, collected_data: dict) -> None:
    """Record times after all files are collected: if that fails, the earlier work keeps its time."""
    _transfer(app, collected_data)
    plugin: Any = app.collector_plugin_inst
    if isinstance(plugin, FileNames):
        plugin.note_times()
