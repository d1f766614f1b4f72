"""The submission that counts for a team: the latest, according to the collectors' record."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.course import handed_in, notebook_of, submitted_folder
from autograder.tables.collected import read_collected
from autograder.tables.teams import teams


def submitter_of(coursedir: CourseDirectory, assignment: str, outside: Path | None = None) -> dict[str, str]:
    """Map each member of a team to the teammate whose submission counts for them; others are absent.

    Submissions may be in a folder `outside` the course.

    Raises:
        ValueError: the roster or the collectors' record cannot be read.
    """
    return {
        member: handed[0]
        for team, handed in handed_in_by(coursedir, assignment, outside).items()
        for member in team
        if handed and member != handed[0]
    }


def handed_in_by(
    coursedir: CourseDirectory, assignment: str, outside: Path | None = None
) -> dict[tuple[str, ...], list[str]]:
    """Map each team to its members who submitted, latest first (ties: roster order). The first one counts.

    A folder without a notebook, such as one with a request for a regrade, counts only if no teammate has a notebook.

    Raises:
        ValueError: the roster or the collectors' record cannot be read.
    """
    root = Path(coursedir.root)
    every_team = dict.fromkeys(teams(root, assignment).values())
    times = read_collected(root) if every_team else {}
    submitters = {}
    for team in every_team:
        folders = {member: submitted_folder(coursedir, assignment, member, outside) for member in team}
        present = [member for member, folder in folders.items() if folder.is_dir()]
        complete = [member for member in present if handed_in(folders[member], notebook_of(assignment)).is_file()]
        submitters[team] = sorted(
            complete or present, key=lambda member: times.get((assignment, member), datetime.min), reverse=True
        )
    return submitters
