"""The question bank: what its files may contain, and a loader that reports every mistake by its line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from worldsize.quiz.expressions import Expression, Template

FOLDER = "quizzes"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Pool: TypeAlias = Literal["self-check", "weekly", "exam"]


class Strict(BaseModel):
    """A part of the bank in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Steps(Strict):
    """A parameter that is drawn from evenly spaced numbers: `low`, `low + step`, ... up to `high`."""

    low: int | float
    high: int | float
    step: Annotated[int | float, Field(gt=0)] = 1

    @model_validator(mode="after")
    def _is_a_range(self) -> Steps:
        if self.high < self.low:
            raise ValueError(f"its high, {self.high}, is below its low, {self.low}")
        return self

    @property
    def values(self) -> list[int | float]:
        """All the numbers."""
        num_steps = int((self.high - self.low) / self.step + 1e-9)
        return [round(self.low + index * self.step, 12) for index in range(num_steps + 1)]


class Choice(Strict):
    """One answer to choose: its text, or the number that it states; whether it is right; the feedback for choosing it.

    The `misconception` of a wrong one names, in a few words, what a student who chose it has mixed up.
    """

    text: Template | None = None
    value: Expression | None = None
    correct: bool
    feedback: Template
    misconception: Text | None = None

    @model_validator(mode="after")
    def _has_one_content(self) -> Choice:
        if (self.text is None) == (self.value is None):
            raise ValueError("a choice must have either a text or a value")
        if self.correct and self.misconception:
            raise ValueError("a correct choice cannot have a misconception")
        if not self.correct and not self.misconception:
            raise ValueError("a wrong choice must name its misconception")
        return self


class Mistake(Strict):
    """An anticipated wrong answer: the number or the text, what was mixed up, and the feedback."""

    value: Expression | None = None
    text: Template | None = None
    misconception: Text
    feedback: Template


class Figure(Strict):
    """A timeline to look at: a template of lines `rank, stream, kind, name, start_s, end_s`, drawn with a title."""

    events: Template
    title: Template
    alt: Template


class Choices(Strict):
    """An answer given by choosing; numbers among the choices are shown with `digits` and their `unit`."""

    choice: Annotated[list[Choice], Field(min_length=2)]
    unit: Text | None = None
    digits: Annotated[int, Field(ge=1, le=6)] = 3

    @property
    def num_correct(self) -> int:
        """The number of correct choices."""
        return sum(choice.correct for choice in self.choice)


class Number(Strict):
    """A number to give, in a unit; right within `tolerance_fraction`. The answer lies from `low` to `high`."""

    answer: Expression
    unit: Text | None = None
    tolerance_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    digits: Annotated[int, Field(ge=1, le=9)] = 3
    low: float
    high: float
    mistake: list[Mistake] = []

    @model_validator(mode="after")
    def _mistakes_are_numbers(self) -> Number:
        if not all(mistake.value and mistake.text is None for mistake in self.mistake):
            raise ValueError("a mistake of a number must have a value and no text")
        return self


class Words(Strict):
    """A word or two to give: any of `accepted`, regardless of case and spaces."""

    accepted: Annotated[list[Template], Field(min_length=1)]
    mistake: list[Mistake] = []

    @model_validator(mode="after")
    def _mistakes_are_texts(self) -> Words:
        if not all(mistake.text and mistake.value is None for mistake in self.mistake):
            raise ValueError("a mistake of a text must have a text and no value")
        return self


class _Question(Strict):
    """The fields of questions of all kinds: `text` is Markdown with LaTeX, `minutes` the time it should take.

    `pool` is what the question is for: the self-check of a lesson, which students see with its answers, the graded
    quizzes, or the exams. A quiz draws only from the pools that its blueprint names.

    `parameters` are drawn, each from a list or from steps, repeatedly until all of `require` holds; the values of
    `where` are computed from them, in order.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    pool: Pool
    text: Template
    week: Annotated[int, Field(ge=1, le=18)]
    objective: Text
    difficulty: Annotated[int, Field(ge=1, le=3)]
    minutes: Annotated[float, Field(gt=0, le=30)]
    source: Text
    parameters: dict[Name, Annotated[list[int | float | str], Field(min_length=2)] | Steps] = {}
    where: dict[Name, Expression] = {}
    require: list[Expression] = []
    figure: Figure | None = None

    @model_validator(mode="after")
    def _names_are_used_once(self) -> _Question:
        if twice := sorted(self.parameters.keys() & self.where.keys()):
            raise ValueError(f"{twice[0]} is both a parameter and computed")
        if (self.where or self.require) and not self.parameters:
            raise ValueError("where and require compute with parameters, but the question has none")
        return self

    @property
    def points(self) -> float:
        """What the question is worth: one point, unless a rubric says otherwise."""
        return 1.0


class Single(_Question, Choices):
    """A question with one right choice among several."""

    kind: Literal["single"]

    @model_validator(mode="after")
    def _has_one_right_choice(self) -> Single:
        if self.num_correct != 1:
            raise ValueError(
                f"a single-choice question needs exactly one correct choice; this one has {self.num_correct}"
            )
        return self


class Multiple(_Question, Choices):
    """A question with one or more right choices among several."""

    kind: Literal["multiple"]

    @model_validator(mode="after")
    def _has_a_right_choice(self) -> Multiple:
        if not self.num_correct:
            raise ValueError("a multiple-choice question needs at least one correct choice; this one has none")
        return self


class Numeric(_Question, Number):
    """A question that asks for a number; `feedback` explains it."""

    kind: Literal["numeric"]
    feedback: Template


class Item(Strict):
    """One thing to be put in order; with `value`, the order is from the smallest value to the largest."""

    text: Template
    value: Expression | None = None


class Ordering(_Question):
    """A question that asks to put things in order: as they are listed, or by their values."""

    kind: Literal["ordering"]
    item: Annotated[list[Item], Field(min_length=3, max_length=8)]
    feedback: Template

    @model_validator(mode="after")
    def _all_have_values_or_none(self) -> Ordering:
        if len({item.value is None for item in self.item}) == 2:
            raise ValueError("either all items must have a value, or none")
        return self


class ShortText(_Question, Words):
    """A question that asks for a word or two; `feedback` explains them."""

    kind: Literal["text"]
    feedback: Template


class NumberGap(Number):
    """A gap for a number."""

    kind: Literal["numeric"]


class WordsGap(Words):
    """A gap for a word or two."""

    kind: Literal["text"]


class ChoicesGap(Choices):
    """A gap for one of several choices."""

    kind: Literal["single"]


Gap: TypeAlias = Annotated[NumberGap | WordsGap | ChoicesGap, Field(discriminator="kind")]


class Cloze(_Question):
    """A text with gaps, each marked `[[name]]` and worth an equal part; `feedback` explains them."""

    kind: Literal["cloze"]
    gap: Annotated[dict[Name, Gap], Field(min_length=1)]
    feedback: Template

    @model_validator(mode="after")
    def _every_gap_stands_in_the_text_once(self) -> Cloze:
        if (names := sorted(gap_names(self.text))) != sorted(self.gap):
            raise ValueError(f"its text has the gaps {names}, but it describes {sorted(self.gap)}")
        return self


class Criterion(Strict):
    """One line of a rubric: what the answer must say, and the points for it, in halves."""

    points: Annotated[float, Field(gt=0, le=20, multiple_of=0.5)]
    text: Template


class Essay(_Question):
    """A question to answer in about `num_words` of the student's own; graded by hand, line by line of its `rubric`.

    `feedback` is a model answer. The question is worth the points of its rubric.
    """

    kind: Literal["essay"]
    num_words: Annotated[int, Field(ge=20, le=1000)]
    rubric: Annotated[list[Criterion], Field(min_length=2)]
    feedback: Template

    @model_validator(mode="after")
    def _is_no_self_check(self) -> Essay:
        if self.pool == "self-check":
            raise ValueError("an essay is graded by hand, so it cannot be a self-check: put it in another pool")
        return self

    @property
    def points(self) -> float:
        """The points of its rubric."""
        return sum(line.points for line in self.rubric)


Question: TypeAlias = Single | Multiple | Numeric | Ordering | ShortText | Cloze | Essay
_KINDS = {"single", "multiple", "numeric", "ordering", "text", "cloze", "essay"}


class Quiz(Strict):
    """One file of the bank."""

    title: Text
    question: Annotated[list[Annotated[Question, Field(discriminator="kind")]], Field(min_length=1)]


def gap_names(text: str) -> list[str]:
    """The names of a text's gaps, in order."""
    return re.findall(r"\[\[([a-z][a-z0-9_]*)\]\]", text)


def load(name: str, folder: Path | str | None = None) -> Quiz:
    """Load a quiz, such as `week01`, from a folder or the nearest `quizzes` folder above.

    Raises:
        ValueError: there is no such quiz, or its file is malformed; the message names file, line, question and reason.
    """
    file = (Path(folder) if folder else find_folder()) / f"{name}.toml"
    if not file.is_file():
        known = sorted(path.stem for path in file.parent.glob("*.toml") if b"[[question]]" in path.read_bytes())
        raise ValueError(f"There is no quiz {name!r} in {file.parent}: choose one of {', '.join(known) or 'none'}.")
    try:
        text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is not valid TOML: {error}.") from error
    try:
        quiz = Quiz.model_validate(data)
    except ValidationError as error:
        raise ValueError("\n".join(f"{file.name}, {problem}" for problem in _problems(error, data, text))) from error
    ids = [question.id for question in quiz.question]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        line = _line(text, ("question", len(ids) - 1 - ids[::-1].index(twice[0]), "id"))
        raise ValueError(f"{file.name}, line {line}, question {twice[0]}: its id is used more than once.")
    return quiz


def find_folder() -> Path:
    """Find the nearest folder of quizzes, from the working directory upwards.

    Raises:
        ValueError: there is no such folder.
    """
    here, ours = Path.cwd(), Path(__file__).resolve()
    for folder in (here, *here.parents, *ours.parents):
        if any((folder / FOLDER).glob("*.toml")):
            return folder / FOLDER
    raise ValueError(f"There is no folder {FOLDER!r} with quizzes in {here} or above: start in the course's folder.")


def _problems(error: ValidationError, data: dict[str, Any], text: str) -> list[str]:
    problems = []
    for problem in error.errors():
        # pydantic inserts the name of the discriminated kind, which is not part of the location
        loc = tuple(part for index, part in enumerate(problem["loc"]) if not (part in _KINDS and index))
        said = problem["msg"].removeprefix("Value error, ").rstrip(".")
        problems.append(f"line {_line(text, loc)}, {_where(loc, data)}: {said}.")
    return problems


def _line(text: str, loc: tuple[int | str, ...]) -> int:
    """The line, from 1, of the innermost part of this location that can be found: a table's header, or a key in it."""
    lines, line, path = text.splitlines(), 0, []
    for part in loc:
        if isinstance(part, int):
            headers = [n for n in range(line, len(lines)) if lines[n].strip() == f"[[{'.'.join(path)}]]"]
            line = headers[part] if part < len(headers) else line
            continue
        path.append(part)
        table_ends = next(
            (n for n in range(line + 1, len(lines)) if lines[n].lstrip().startswith("[[question]]")), None
        )
        for n in range(line, len(lines) if table_ends is None else table_ends):
            if re.match(rf"\s*(\[{re.escape('.'.join(path))}\]|{re.escape(part)}\s*=)", lines[n]):
                line = n
                break
    return line + 1


def _where(loc: tuple[int | str, ...], data: dict[str, Any]) -> str:
    """The location in words: `question 3 (w01-mean), choice 1, feedback`."""
    words: list[str] = []
    for part in loc:
        if isinstance(part, int):
            words[-1] += f" {part + 1}"
        else:
            words.append(part)
    if len(loc) > 1 and loc[0] == "question":
        question = data["question"][loc[1]]
        if isinstance(question, dict) and isinstance(question.get("id"), str):
            words[0] += f" ({question['id']})"
    return ", ".join(words) or "the file"
