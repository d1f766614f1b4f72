"""Whose hand-in counts for a team: the last one by the collectors' record."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.course import handed_in, notebook_of
from autograder.tables.collected import read_collected
from autograder.tables.teams import teams


def counting(coursedir: CourseDirectory, assignment: str) -> dict[str, str]:
    """By member of a team whose work counts for them, where that is another member's.

    Raises:
        ValueError: the roster or the collectors' record cannot be read.
    """
    return {
        member: handed[0]
        for team, handed in handed_in_by(coursedir, assignment).items()
        for member in team
        if handed and member != handed[0]
    }


def handed_in_by(coursedir: CourseDirectory, assignment: str) -> dict[tuple[str, ...], list[str]]:
    """By team who of it handed in, first the one that counts: the last in time, of equal ones the first on the roster.

    A folder without a notebook, such as one with a request for a regrade, is no hand-in beside one that has one.

    Raises:
        ValueError: the roster or the collectors' record cannot be read.
    """
    root = Path(coursedir.root)
    every = dict.fromkeys(teams(root, assignment).values())
    times = read_collected(root) if every else {}
    found = {}
    for team in every:
        folders = {one: Path(coursedir.format_path(coursedir.submitted_directory, one, assignment)) for one in team}
        there = [one for one, folder in folders.items() if folder.is_dir()]
        whole = [one for one in there if handed_in(folders[one], notebook_of(assignment)).is_file()]
        found[team] = sorted(whole or there, key=lambda one: times.get((assignment, one), datetime.min), reverse=True)
    return found
