"""Points given by hand for essays: reading the table of answers to grade once a person has filled it in.

Each row holds a hash of its answer, so that points never count for an answer other than the one that was graded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autograder.quiz.forms import Form
from autograder.tables.csv_table import read_table
from worldsize.quiz import Variant
from worldsize.units import parse_number

HEAD = ("student", "number", "question", "answer", "points", "out_of", "comment", "mark")
_NEEDED = ("student", "number", "points", "mark")


@dataclass(frozen=True)
class HandPoints:
    """The points and the comment that a person gave an answer, and the answer's `mark`, a hash."""

    points: float
    comment: str
    mark: str


ByHand: TypeAlias = Mapping[tuple[str, int], HandPoints]  # by student and number


def mark_of(variant: Variant, written: str) -> str:
    """A hash of the question and the answer, in a form that no spreadsheet takes for a number."""
    read = "\0".join([variant.id, variant.text, " ".join(written.split())])
    return f"a{hashlib.sha256(read.encode('utf-8', 'replace')).hexdigest()[:12]}"


def read_hand_points(
    file: Path, forms: Sequence[Form], encoding: str | None = None
) -> dict[tuple[str, int], HandPoints]:
    """The points in a table, by student and number; rows without points are skipped.

    `encoding` is for a table that a spreadsheet has saved in an encoding other than UTF-8.

    Raises:
        ValueError: it is not such a table, or has lines that cannot be read; names each of them.
    """
    try:
        table = read_table(file)  # try UTF-8 first, as it was written: `encoding` may be meant for the responses
    except ValueError:
        if encoding is None:
            raise
        table = read_table(file, encoding)
    if missing := [name for name in _NEEDED if name not in table.head]:
        raise ValueError(
            f"{file} has no column {missing[0]!r}: fill in the table that `autograder quiz mark` wrote, "
            "and leave its columns as they are."
        )
    points: dict[tuple[str, int], HandPoints] = {}
    problems: list[str] = []
    for line, row in table.rows:
        if not row["points"].strip():
            continue
        try:
            key, given = _row(row, forms)
            if key in points:
                raise ValueError(f"{key[0]}, question {key[1]}: it has points already, in a line above")
            points[key] = given
        except ValueError as error:
            problems.append(f"{table.where(line)}: {error}.")
    if problems:
        raise ValueError("\n".join([*problems, "Nothing was written. Correct these points."]))
    return points


def _row(row: Mapping[str, str], forms: Sequence[Form]) -> tuple[tuple[str, int], HandPoints]:
    student, number = row["student"].strip(), row["number"].strip()
    form = next((form for form in forms if form.student.id.casefold() == student.casefold()), None)
    if form is None:
        raise ValueError(f"{student or 'somebody'} has no form in this key")
    if not number.isdecimal() or not 1 <= int(number) <= len(form.asked):
        raise ValueError(f"{student}: there is no question {number!r}")
    question = form.variants[int(number) - 1].question
    if question.kind != "essay":
        raise ValueError(
            f"{student}, question {number}: {question.id} is marked by the key and takes no points by hand"
        )
    try:
        points = parse_number(row["points"])
    except ValueError:
        points = -1.0
    if not 0 <= points <= question.points:
        raise ValueError(
            f"{student}, question {number}: {row['points'].strip()!r} is not a number of points from 0 to "
            f"{question.points:g}"
        )
    return (form.student.id, int(number)), HandPoints(points, row.get("comment", "").strip(), row["mark"].strip())
