"""What a quiz consists of: how many questions, from which weeks, how hard; and whether the bank has enough."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worldsize.quiz import Question

FILE = "blueprints.toml"  # beside the bank
Cell = tuple[int, int]  # a week and a difficulty: what one form has of it, every form has


class Blueprint(BaseModel):
    """What every form of a quiz has: `count` questions, spread evenly over the weeks, equally hard for everybody.

    Empty `weeks`, `objectives` (words that an objective has) and `difficulties` allow all; `minutes` is the most that a
    form may take, by its questions' own times; it is passed with `pass_fraction` of the points.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=200)]
    weeks: tuple[Annotated[int, Field(ge=1, le=14)], ...] = ()
    objectives: tuple[str, ...] = ()
    difficulties: tuple[Annotated[int, Field(ge=1, le=3)], ...] = ()
    minutes: Annotated[float, Field(gt=0)] | None = None
    pass_fraction: Annotated[float, Field(gt=0, le=1)] = 0.8

    def allows(self, question: Question) -> bool:
        """True for a question that may be asked."""
        wanted = [words.lower() in question.objective.lower() for words in self.objectives]
        return (
            (not self.weeks or question.week in self.weeks)
            and (not self.difficulties or question.difficulty in self.difficulties)
            and (not wanted or any(wanted))
        )


def read_blueprints(folder: Path) -> dict[str, Blueprint]:
    """The blueprints beside the bank, by name; empty without such a file.

    Raises:
        ValueError: the file is malformed; names the blueprint and the reason.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return {name: Blueprint.model_validate(given) for name, given in data.items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is not valid TOML: {error}.") from error
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise ValueError(f"{file.name}, in a blueprint: {'; '.join(problems)}.") from error


def shares(blueprint: Blueprint, questions: Sequence[Question]) -> dict[Cell, int]:
    """How many questions of each week and difficulty every form has.

    Weeks get equal parts, and within a week difficulties get parts like those of the bank; remainders go to where the
    most questions are left.

    Raises:
        ValueError: the bank has fewer questions than are asked for, or none that are short enough.
    """
    allowed = [question for question in questions if blueprint.allows(question)]
    if len(allowed) < blueprint.count:
        raise ValueError(
            f"{blueprint.title!r} asks for {blueprint.count} questions, and the bank has {len(allowed)} that fit: "
            "ask for fewer, or for more weeks, objectives or difficulties."
        )
    stock: dict[int, Counter[int]] = defaultdict(Counter)
    for question in allowed:
        stock[question.week][question.difficulty] += 1
    of_weeks = _spread(blueprint.count, {week: counts.total() for week, counts in stock.items()}, evenly=True)
    return {
        (week, difficulty): num
        for week, counts in sorted(stock.items())
        for difficulty, num in sorted(_spread(of_weeks[week], dict(counts), evenly=False).items())
        if num
    }


def _spread(total: int, stock: dict[int, int], evenly: bool) -> dict[int, int]:
    """`total` things from a stock, each from where least was taken: by number, or relative to stock (Sainte-Laguë)."""
    taken = dict.fromkeys(sorted(stock), 0)
    for _ in range(total):
        left = [key for key in taken if taken[key] < stock[key]]
        best = min(left, key=lambda key: (taken[key] if evenly else (taken[key] + 0.5) / stock[key], -stock[key], key))
        taken[best] += 1
    return taken
