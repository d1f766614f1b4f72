"""Teams: who works with whom on assignments for teams, according to the roster's column `team`."""

from __future__ import annotations

from pathlib import Path

from autograder.course import lab_settings
from autograder.tables.extensions import Extensions, read_extensions
from autograder.tables.roster import class_roster


def teams(root: Path, assignment: str) -> dict[str, tuple[str, ...]]:
    """Map each student to all members of their team, in roster order; empty if the assignment is not for teams.

    Raises:
        ValueError: the course's roster or the assignment's settings cannot be read.
    """
    members: dict[str, list[str]] = {}
    has_teams = lab_settings(root / "solutions" / assignment).has_teams
    for student in class_roster(root) if has_teams else ():
        if student.team:
            members.setdefault(student.team.casefold(), []).append(student.id)
    return {student: tuple(team) for team in members.values() if len(team) > 1 for student in team}


def team_extensions(root: Path) -> Extensions:
    """The extensions in the course's record; every member of a team gets the longest one of any member.

    Raises:
        ValueError: the record or the roster cannot be read.
    """
    found = read_extensions(root)
    for (assignment, student), extension in [*found.items()]:
        for member in teams(root, assignment).get(student, ()):
            found[assignment, member] = max(extension, found.get((assignment, member), extension))
    return found
