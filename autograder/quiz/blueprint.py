"""Blueprint of a quiz: how many questions it has, from which pools and weeks, and whether the bank has enough."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from worldsize.quiz import Question
from worldsize.quiz.bank import Pool

FILE = "blueprints.toml"  # in the bank's folder
Kind: TypeAlias = Literal["single", "multiple", "numeric", "ordering", "text", "cloze"]  # essays are counted separately


class BlueprintCell(NamedTuple):
    """Questions of a week and a difficulty: what one form has of them, every form has."""

    week: int
    difficulty: int
    is_essay: bool = False

    @classmethod
    def of(cls, question: Question) -> BlueprintCell:
        """The cell that a question belongs to."""
        return cls(question.week, question.difficulty, question.kind == "essay")


class Blueprint(BaseModel):
    """The rules that every form of a quiz follows: `count` questions, spread evenly over the weeks, equally hard.

    The last `essays` of them are essays. Questions come only from `pools`. `weeks`, `essay_weeks`, `objectives` (words
    that an objective contains), `difficulties` and `kinds` restrict them further; empty allows all. `minutes` limits
    the sum of the questions' own times. Students pass with `pass_fraction` of the points. If `needs_week` is true,
    the weeks must be named when the quiz is made.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=200)]
    essays: Annotated[int, Field(ge=0)] = 0
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = ("weekly",)
    weeks: tuple[Annotated[int, Field(ge=1, le=18)], ...] = ()
    essay_weeks: tuple[Annotated[int, Field(ge=1, le=18)], ...] = ()
    objectives: tuple[str, ...] = ()
    difficulties: tuple[Annotated[int, Field(ge=1, le=3)], ...] = ()
    kinds: tuple[Kind, ...] = ()
    minutes: Annotated[float, Field(gt=0)] | None = None
    pass_fraction: Annotated[float, Field(gt=0, le=1)] = 0.8
    needs_week: bool = False

    @model_validator(mode="after")
    def _essays_are_counted(self) -> Blueprint:
        if self.essays > self.count:
            raise ValueError(f"{self.essays} of {self.count} questions cannot be essays")
        return self

    def allows(self, question: Question) -> bool:
        """Whether this question may be asked."""
        wanted = [words.lower() in question.objective.lower() for words in self.objectives]
        return (
            question.pool in self.pools
            and (not self.weeks or question.week in self.weeks)
            and (question.kind != "essay" or not self.essay_weeks or question.week in self.essay_weeks)
            and (not self.kinds or question.kind in (*self.kinds, "essay"))
            and (not self.difficulties or question.difficulty in self.difficulties)
            and (not wanted or any(wanted))
        )


def read_blueprints(folder: Path) -> dict[str, Blueprint]:
    """The blueprints in the bank's folder, by name; empty if it has no file of blueprints.

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


def shares(blueprint: Blueprint, questions: Sequence[Question]) -> dict[BlueprintCell, int]:
    """How many questions of each week and difficulty every form has, and how many essays.

    Weeks get equal shares. Within a week, difficulties get shares in proportion to the bank. Remainders go to the cells
    with the most questions left.

    Raises:
        ValueError: the bank has fewer questions than are asked for, or its essays differ in their points.
    """
    allowed = [question for question in questions if blueprint.allows(question)]
    essays = [question for question in allowed if question.kind == "essay"]
    marked = [question for question in allowed if question.kind != "essay"]
    if blueprint.essays and len(worth := {essay.points for essay in essays}) > 1:
        listed = ", ".join(map("{:g}".format, sorted(worth)))
        raise ValueError(
            f"{blueprint.title!r} asks for essays, and those that fit are worth {listed} points: "
            "forms would not be equal. Have their rubrics add up to the same, or choose others by objective."
        )
    return {
        **_cells(blueprint, blueprint.count - blueprint.essays, marked, "questions"),
        **_cells(blueprint, blueprint.essays, essays, "essays"),
    }


def _cells(blueprint: Blueprint, count: int, allowed: Sequence[Question], name: str) -> dict[BlueprintCell, int]:
    """`shares` of these questions, which are all essays or none."""
    if len(allowed) < count:
        raise ValueError(
            f"{blueprint.title!r} asks for {count} {name}, and the bank has {len(allowed)} that fit in the pools "
            f"{', '.join(blueprint.pools)}: ask for fewer, or for more pools, weeks, objectives or difficulties."
        )
    stock: dict[int, Counter[int]] = defaultdict(Counter)
    for question in allowed:
        stock[question.week][question.difficulty] += 1
    of_weeks = _spread(count, {week: counts.total() for week, counts in stock.items()}, evenly=True)
    return {
        BlueprintCell(week, difficulty, name == "essays"): num
        for week, counts in sorted(stock.items())
        for difficulty, num in sorted(_spread(of_weeks[week], dict(counts), evenly=False).items())
        if num
    }


def _spread(total: int, stock: dict[int, int], evenly: bool) -> dict[int, int]:
    """Apportion `total` picks over the stock: evenly, or in proportion to it (Sainte-Laguë)."""
    taken = dict.fromkeys(sorted(stock), 0)
    for _ in range(total):
        left = [key for key in taken if taken[key] < stock[key]]
        best = min(left, key=lambda key: (taken[key] if evenly else (taken[key] + 0.5) / stock[key], -stock[key], key))
        taken[best] += 1
    return taken
