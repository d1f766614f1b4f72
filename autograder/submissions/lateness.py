"""Late penalties, computed from the collector's time with the policy in nbgrader_config.py.

nbgrader takes the time of a submission from `timestamp.txt`, which is one of the student's own files. Here it counts
only if `c.Policy.trust_timestamps` is set; otherwise the time in the collectors' record counts.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path

from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.utils import parse_utc
from traitlets import Bool, Float

from autograder.course import settings_of
from autograder.tables.collected import COLLECTED, read_collected

_DAY_S = 86400


class Policy(LateSubmissionPlugin):
    """Policy for the points that a late submission loses: none by default.

    A submission is late after the due date and the grace period; then every day begun since the due date counts.
    nbgrader computes penalties while autograding. After points were given by hand or a date has changed, run
    `autograder late` to compute them again.
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


def submitted_at(coursedir: CourseDirectory, folder: str) -> datetime | None:
    """The time when the work in a folder was submitted, in UTC; None if no trusted source records it.

    Raises:
        ValueError: the collectors' record cannot be read.
    """
    written = Path(folder, "timestamp.txt")
    names = coursedir.format_path(
        coursedir.submitted_directory, "(?P<student>[^/]+)", "(?P<assignment>[^/]+)", escape=True
    )
    found = re.fullmatch(names, folder)
    if not found:  # nbgrader's own copy: the time is used only to decide whether the copy is out of date
        return _read_timestamp(written)
    time = read_collected(Path(coursedir.root)).get((found["assignment"], found["student"]))
    if time or not written.exists():
        return time
    if Policy(config=settings_of(coursedir)).trust_timestamps:
        return _read_timestamp(written)
    coursedir.log.warning(
        "%s was written by the student and is ignored; no collector recorded a time in %s, so nothing is late.",
        written,
        COLLECTED,
    )
    return None


def _read_timestamp(path: Path) -> datetime | None:
    """The time in a file; None if there is no file or its text is not a time."""
    if not path.is_file():  # reading a pipe would never end
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return parse_utc(file.read(100).strip())
    except (OSError, ValueError, OverflowError, TypeError):
        return None


def install() -> None:
    """Make every nbgrader command ask `submitted_at` for the time of a submission."""
    # nbgrader has no extension point for this, and all of its commands must agree
    CourseDirectory.get_existing_timestamp = lambda self, dest_path: submitted_at(self, dest_path)
