"""What a person at the keyboard may choose of a quiz."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autograder.quiz.blueprint import FILE, Blueprint, read_blueprints
from autograder.quiz.formats import FORMATS, pdf
from autograder.quiz.formats.format import Format
from autograder.quiz.roster import Student

PAPERS: Mapping[str, pdf.Paper] = {"a4": "a4", "letter": "us-letter"}


def blueprint(folder: Path, name: str | None, wanted: Mapping[str, Any]) -> Blueprint:
    """The blueprint of this name with what is wanted otherwise, or one of what is wanted alone.

    Raises:
        ValueError: there is no such blueprint, nothing is wanted, or something that cannot be.
    """
    changes = {key: value for key, value in wanted.items() if value not in (None, [])}
    if name is None:
        if "count" not in changes:
            raise ValueError("Say which quiz: --blueprint NAME, or --count with --week, --objective or --difficulty.")
        given: dict[str, Any] = {"title": _titled(changes.get("weeks", []))}
    else:
        known = read_blueprints(folder)
        if name not in known:
            listed = ", ".join(sorted(known)) or "(none)"
            raise ValueError(f"There is no blueprint {name!r} in {folder / FILE}: choose one of {listed}.")
        given = known[name].model_dump()
    try:
        return Blueprint.model_validate({**given, **changes})
    except ValidationError as error:
        problems = (f"{' '.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ValueError(f"There can be no such quiz: {'; '.join(problems)}.") from error


def formats(names: Sequence[str], paper: str) -> list[Format]:
    """The formats of these names, or all of them; PDF on this paper.

    Raises:
        ValueError: there is no such format or paper.
    """
    if unknown := [name for name in names if name not in FORMATS]:
        raise ValueError(f"There is no format {unknown[0]!r}: choose from {', '.join(FORMATS)}.")
    if paper not in PAPERS:
        raise ValueError(f"There is no paper {paper!r}: choose one of {', '.join(PAPERS)}.")
    chosen = {**FORMATS, "pdf": pdf.on(PAPERS[paper])}
    return [chosen[name] for name in FORMATS if not names or name in names]


def without_a_font(roster: Sequence[Student]) -> str | None:
    """A sentence about a name that PDFs here cannot show; None where all can be shown."""
    missing = pdf.without_a_font(" ".join(student.name for student in roster))
    if missing is None:
        return None
    return (
        f"No font on this machine has {missing!r}: in PDFs a box stands in its place. Install one that has it, such "
        "as Google's Noto, and make the quiz again."
    )


def _titled(weeks: Sequence[int]) -> str:
    listed = sorted(set(weeks))
    if not listed:
        return "Quiz"
    if len(listed) == 1:
        return f"Quiz, week {listed[0]}"
    return f"Quiz, weeks {', '.join(map(str, listed[:-1]))} and {listed[-1]}"
