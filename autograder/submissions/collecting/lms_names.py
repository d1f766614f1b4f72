"""Parsing file names in archives from Moodle, Canvas and Blackboard: the student, the file, and the time.

Moodle names a student by full name and a group by the group's name, Canvas by its own number, which is the roster's
`lms id`, and Blackboard by user name, the roster's `id`. Only Blackboard's names have a time, in the local time zone.

Sources, read in November 2026: Moodle, `mod/assign/classes/downloader.php` of moodle/moodle: `NAME_NUMBER_
assignsubmission_file/FILE`, or without folders `..._file_FILE`; Canvas, `lib/content_zipper.rb` of instructure/
canvas-lms: `name_USER_ATTACHMENT_FILE`, with `LATE_` before the number of late work, and `anon_` with five characters
in place of name and number where grading is anonymous; Blackboard Learn, the example in nbgrader's documentation of
`zip_collect`: `ASSIGNMENT_USER_attempt_TIME_FILE`. None was tried on a real system.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from zoneinfo import ZoneInfo

from autograder.tables.roster import Student

SYSTEMS = ("moodle", "canvas", "blackboard")
# the part of the name given by the system; the student chooses the rest, which may look the same
_PATTERNS = {
    "moodle": re.compile(r"(?P<who>[^/]+?)_\d+_assignsubmission_file(?:_?/(?:.*/)?|_)(?P<file>[^/]+)"),
    # what stands between the first two numbers that can be meant
    "canvas": re.compile(r"[^/]*?_(?P<late>LATE_)?(?P<who>\d+)_(?P<number>\d+)_(?:.*/)?(?P<file>[^/]+)"),
    "blackboard": re.compile(r"(?P<who>[^/]+?)_attempt_(?P<time>\d{4}(?:-\d\d){5})_(?:.*/)?(?P<file>[^/]+)"),
}
_AGAIN = re.compile(r"-\d+$")  # Canvas appends it to the name of a file submitted again
_ANONYMOUS = re.compile(r"(?:LATE_)?anon_[^_/]+_\d+_.+")


class UnknownStudent(ValueError):
    """The name of a file has the system's format, but matches no student on the roster, or several."""


@dataclass(frozen=True)
class HandIn:
    """A submitted file: its student, its own name, its time in UTC, and whether the system calls it late."""

    student: str
    file: str
    time: datetime | None = None
    is_late: bool = False


def read_name(
    system: str, path: PurePath, roster: Sequence[Student], zone: ZoneInfo, assignment: str = ""
) -> HandIn | None:
    """Parse a path in an archive; None if it is not a submitted file.

    `assignment` is the assignment's name in the archive, as far as other file names reveal it.

    Raises:
        UnknownStudent: the name matches no student on the roster, or several.
    """
    if system == "canvas" and _ANONYMOUS.fullmatch(path.name):
        raise UnknownStudent("the assignment is graded anonymously in Canvas: turn that off there, and download again")
    fitting = _fitting(system, path)
    if not fitting:
        return None
    by = {"moodle": _by_name, "canvas": _by_number, "blackboard": _by_id}[system]
    # the first match is the system's, unless it is the instructor's folder around all files
    found = fitting[min(fitting)]
    if 0 in fitting and len(fitting) > 1 and not by(found["who"], roster):
        found = fitting[sorted(fitting)[1]]
    meant = by(found["who"], roster)
    if meant and assignment and _before_id(found["who"], meant[0]).startswith(f"{assignment}_"):
        meant = []  # this id is the end of a longer id
    if len(meant) != 1:
        several = f"{', '.join(one.id for one in meant)} may be" if meant else "nobody on the roster is"
        raise UnknownStudent(f"{several} {found['who']!r}")
    parts = found.groupdict()
    time = parts.get("time")
    return HandIn(
        meant[0].id,
        own_name(system, found["file"], (".ipynb", ".py")),
        _in_utc(time, zone) if time else None,
        bool(parts.get("late")),
    )


def canvas_numbers(name: str) -> tuple[str, int] | None:
    """The numbers of the student and of the file in a name that Canvas made; None if it did not."""
    found = None if _ANONYMOUS.fullmatch(name) else _PATTERNS["canvas"].fullmatch(name)
    return (found["who"], int(found["number"])) if found else None


def _fitting(system: str, path: PurePath) -> dict[int, re.Match[str]]:
    """The parts of a path that have the system's format, by their index in the path."""
    tails = {place: "/".join(path.parts[place:]) for place in range(len(path.parts))}
    found = {place: _PATTERNS[system].fullmatch(tail) for place, tail in tails.items()}
    return {place: match for place, match in found.items() if match}


def assignment_in(paths: Iterable[PurePath], roster: Sequence[Student]) -> str:
    """Blackboard's name for the assignment of these files: the text before the roster's ids."""
    # a student's own archive is unpacked to a folder that Blackboard named
    found = [re.search(r"([^/]+?)_attempt_\d{4}(?:-\d\d){5}", path.as_posix()) for path in paths]
    people = [(one[1], student) for one in found if one for student in _by_id(one[1], roster)]
    return min((_before_id(who, student) for who, student in people), key=len, default="")


def own_name(system: str, name: str, endings: Sequence[str] = (".py",)) -> str:
    """The name that a submitted file should have, without what Canvas appends to files with these endings."""
    file = PurePath(name)
    # in a student's archive a notebook may have any name, a program must have its own
    return f"{_AGAIN.sub('', file.stem)}{file.suffix}" if system == "canvas" and file.suffix in endings else name


def _by_name(who: str, roster: Sequence[Student]) -> list[Student]:
    """The students with this full name; if there is none, the first member of the team with this name."""
    named = [one for one in roster if one.name and _words(one.name) == _words(who)]
    return named or [one for one in roster if one.team and _words(one.team) == _words(who)][:1]


def _words(name: str) -> list[str]:
    """The sorted words of a name, without accents and punctuation, which file names may lack."""
    plain = unicodedata.normalize("NFKD", name.casefold())
    kept = "".join(one for one in plain if not unicodedata.combining(one) and one not in "'’.")
    return sorted(re.findall(r"\w+", kept.replace("_", " ")))


def _by_number(who: str, roster: Sequence[Student]) -> list[Student]:
    return [one for one in roster if one.lms_id == who]


def _by_id(who: str, roster: Sequence[Student]) -> list[Student]:
    """The student whose id is at the end, after the assignment's name; if two ids match, the longer one."""
    meant = [one for one in roster if f"_{who}".casefold().endswith(f"_{one.id}".casefold())]
    return sorted(meant, key=lambda one: -len(one.id))[:1]


def _before_id(who: str, student: Student) -> str:
    return who[: -len(student.id) - 1]


def _in_utc(text: str, zone: ZoneInfo) -> datetime:
    time = datetime.strptime(text, "%Y-%m-%d-%H-%M-%S").replace(tzinfo=zone)
    return time.astimezone(UTC).replace(tzinfo=None)
