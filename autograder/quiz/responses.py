"""What students handed in, and the tables that it comes in.

Nothing is guessed: whatever cannot be read is a `Problem` with its place and its reason.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.quiz.forms import Form
from worldsize.quiz.variant import Answer


@dataclass(frozen=True)
class Problem:
    """Something that cannot be read; about one response to question `number`, or about more than that."""

    where: str
    student: str
    number: int | None
    reason: str

    def __str__(self) -> str:
        about = f", question {self.number}" if self.number else ""
        return f"{self.where}: {self.student}{about}: {self.reason}."


@dataclass(frozen=True)
class Given:
    """A response as it was written, as it was understood, and where it stands."""

    written: str
    response: Any
    where: str


@dataclass
class Handed:
    """What came in from the students of these forms: responses by student and number, and all that is odd."""

    forms: Sequence[Form]
    given: dict[str, dict[int, Given]] = field(default_factory=dict)
    minutes: dict[str, float] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    strangers: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_id = {form.student.id.casefold(): form for form in self.forms}

    def form(self, student: str, where: str) -> Form | None:
        """The form of a student, who has handed something in; None of a stranger, who is noted."""
        found = self._by_id.get(student.strip().casefold())
        if found is None:
            self.strangers.append(Problem(where, student.strip() or "somebody", None, "has no form in this key"))
        else:
            self.given.setdefault(found.student.id, {})
        return found

    def is_known(self, student: str) -> bool:
        """True for the id of a student who has a form."""
        return student.strip().casefold() in self._by_id

    def once(self, form: Form, where: str) -> bool:
        """True for the first row of a student; a later one is a problem."""
        if not self.given[form.student.id]:
            return True
        self.problems.append(
            Problem(where, form.student.id, None, "has a row already; keep the one that counts, and no other")
        )
        return False

    def put(self, form: Form, number: int, written: str, where: str, read: Callable[[], Any]) -> None:
        """Notes a response, or why it cannot be read."""
        student = form.student.id
        before = self.given[student].get(number)
        if before is not None and before.written.split() == written.split():
            return
        if before is not None:
            reason = f"{written!r} here and {before.written!r} in {before.where}: it was answered twice"
            self.problems.append(Problem(where, student, number, reason))
            return
        response = None
        try:
            response = read()
        except ValueError as error:
            self.problems.append(Problem(where, student, number, str(error)))
        self.given[student][number] = Given(written, response, where)

    def answer(self, form: Form, number: int) -> Answer:
        """The answer to a form's question of this number, from 1."""
        return form.asked[number - 1].variant.answer


@dataclass(frozen=True)
class Table:
    """A CSV file: the names in its head, and its rows with the lines on which they end."""

    file: Path
    head: list[str]
    rows: list[tuple[int, dict[str, str]]]

    def where(self, line: int) -> str:
        """A place in it."""
        return f"{self.file.name}, line {line}"


def read_table(file: Path, encoding: str | None = None) -> Table:
    """The table of a CSV file in UTF-8, or UTF-16 with its mark, between commas, semicolons or tabs.

    Raises:
        ValueError: it cannot be read; names the line.
    """
    try:
        data = file.read_bytes()
        marked = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        text = data.decode(encoding or marked)
    except (OSError, LookupError) as error:
        raise ValueError(f"{file} cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file.name}, line {line}: not in {(encoding or 'UTF-8').upper()}. Save the table as CSV in UTF-8, or "
            "name its --encoding, such as cp1252."
        ) from error
    first = re.sub(r'"[^"]*"', "", text).strip().split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, head = [], None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if head is None:
                head = [" ".join(cell.split()) for cell in cells]
                twice = [name for name in head if head.count(name) > 1]
                if twice and "n correct" not in head:  # Canvas heads every column of points with a number
                    raise ValueError(f"{file} has the column {twice[0]!r} twice.")
                continue
            if len(cells) != len(head):
                raise ValueError(
                    f"{file.name}, line {reader.line_num}: it has {len(cells)} cells and the head has {len(head)}."
                )
            rows.append((reader.line_num, dict(zip(head, cells, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{file.name}, line {reader.line_num}: {error}.") from error
    return Table(file, head or [], rows)
