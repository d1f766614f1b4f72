"""A question as one student gets it: parameters drawn, texts filled in, answers computed."""

from __future__ import annotations

import hashlib
import math
import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from worldsize.quiz import bank
from worldsize.quiz.expressions import Value, evaluate, fill
from worldsize.units import significant

_TRIES = 1000


@dataclass(frozen=True)
class Option:
    """One answer to choose; `value` if it is a number, `place` its index among the question's choices in the bank."""

    text: str
    correct: bool
    feedback: str
    misconception: str | None = None
    value: float | None = None
    place: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Options:
    """Answers to choose from, in the order in which they are shown; `single` when exactly one is right."""

    options: tuple[Option, ...]
    single: bool

    @property
    def right(self) -> set[int]:
        """The indices of the correct options."""
        return {index for index, option in enumerate(self.options) if option.correct}


@dataclass(frozen=True)
class WrongNumber:
    """A number that a particular mistake leads to."""

    value: float
    misconception: str
    feedback: str


@dataclass(frozen=True)
class Amount:
    """A number to give, right if it is at most `tolerance` away."""

    value: float
    tolerance: float
    digits: int
    unit: str = ""
    mistakes: tuple[WrongNumber, ...] = ()

    @property
    def text(self) -> str:
        """The answer as it is printed in a key; a whole number without decimals."""
        shown = re.sub(r"\.0+$", "", significant(self.value, self.digits))
        return f"{shown}%" if self.unit == "%" else f"{shown} {self.unit}".strip()


@dataclass(frozen=True)
class WrongWords:
    """A text that a particular mistake leads to."""

    text: str
    misconception: str
    feedback: str


@dataclass(frozen=True)
class Phrase:
    """A word or two to give, any of `accepted`; a key prints the first."""

    accepted: tuple[str, ...]
    mistakes: tuple[WrongWords, ...] = ()


@dataclass(frozen=True)
class Order:
    """Things to put in order: as they are shown, and their indices in the right order."""

    shown: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def in_order(self) -> tuple[str, ...]:
        """The texts in the right order."""
        return tuple(self.shown[index] for index in self.places)


@dataclass(frozen=True)
class Gaps:
    """The answer for each `[[name]]` of the text, in order."""

    gaps: dict[str, Options | Amount | Phrase]


@dataclass(frozen=True)
class RubricLine:
    """One line of a rubric: what earns these points."""

    points: float
    text: str


@dataclass(frozen=True)
class Prose:
    """An answer of about `num_words` in the student's own words, which a person grades line by line of the rubric."""

    num_words: int
    rubric: tuple[RubricLine, ...]

    @property
    def points(self) -> float:
        """The points of all lines together."""
        return sum(line.points for line in self.rubric)


Answer: TypeAlias = Options | Amount | Phrase | Order | Gaps | Prose


@dataclass(frozen=True)
class TimelinePicture:
    """A timeline to look at: events as lines, a title, and what it shows in words."""

    events: str
    title: str
    alt: str


@dataclass(frozen=True)
class Variant:
    """A question with its parameters drawn. Texts are Markdown with LaTeX between dollar signs."""

    question: bank.Question
    parameters: dict[str, Value] = field(hash=False)
    text: str
    answer: Answer = field(hash=False)
    feedback: str = ""  # of the question as a whole; choices have their own
    picture: TimelinePicture | None = None

    @property
    def id(self) -> str:
        """The question's id, with what distinguishes this variant if the question has several."""
        if not self.parameters:
            return self.question.id
        drawn = hashlib.sha256(repr(sorted(self.parameters.items())).encode()).hexdigest()[:10]
        return f"{self.question.id}-{drawn}"


def draw(question: bank.Question, seed: int | str | bytes) -> Variant:
    """Draw the variant of a question for a seed, the same on every machine.

    Raises:
        ValueError: a value cannot be computed, is not a number, or makes two choices alike; the message names the
            question.
    """
    rng = random.Random(seed)
    try:
        names = _parameters(question, rng)
        drawn = {name: names[name] for name in question.parameters}
        picture = question.figure and _picture(question.figure, names)
        feedback = fill(question.feedback, names) if not isinstance(question, bank.Choices) else ""
        return Variant(question, drawn, fill(question.text, names), _answer(question, names, rng), feedback, picture)
    except ValueError as error:
        raise ValueError(f"question {question.id}: {error}") from error


def _parameters(question: bank.Question, rng: random.Random) -> dict[str, Value]:
    """Draw the parameters, and compute the values that depend on them."""
    for _ in range(_TRIES):
        drawn: dict[str, Value] = {
            name: rng.choice(given.values if isinstance(given, bank.Steps) else given)
            for name, given in question.parameters.items()
        }
        names = {**drawn, **_computed(question, drawn)}
        if all(evaluate(required, names) for required in question.require):
            return names
    raise ValueError(f"none of {_TRIES} draws satisfied every condition in `require`: {', '.join(question.require)}")


def _computed(question: bank.Question, drawn: dict[str, Value]) -> dict[str, Value]:
    names = dict(drawn)
    for name, expression in question.where.items():
        names[name] = evaluate(expression, names)
    return {name: names[name] for name in question.where}


def _answer(question: bank.Question, names: dict[str, Value], rng: random.Random) -> Answer:
    match question:
        case bank.Ordering():
            return _order(question, names, rng)
        case bank.Cloze():
            # in the order of the text, which numbers them
            return Gaps({name: _gap(question.gap[name], names, rng) for name in bank.gap_names(question.text)})
        case bank.Essay():
            lines = (RubricLine(line.points, fill(line.text, names)) for line in question.rubric)
            return Prose(question.num_words, tuple(lines))
        case _:
            return _gap(question, names, rng)


def _gap(
    asked: bank.Choices | bank.Number | bank.Words, names: dict[str, Value], rng: random.Random
) -> Options | Amount | Phrase:
    match asked:
        case bank.Choices():
            return _options(asked, names, rng)
        case bank.Number():
            return _amount(asked, names)
        case _:
            mistakes = (
                WrongWords(fill(m.text or "", names), m.misconception, fill(m.feedback, names)) for m in asked.mistake
            )
            return Phrase(tuple(fill(text, names) for text in asked.accepted), tuple(mistakes))


def _options(asked: bank.Choices, names: dict[str, Value], rng: random.Random) -> Options:
    options = []
    for index, choice in enumerate(asked.choice):
        value = None if choice.value is None else _number(choice.value, names)
        if value is None:
            text = fill(choice.text or "", names)
        else:
            text = f"{significant(value, asked.digits)} {asked.unit or ''}".strip()
        options.append(Option(text, choice.correct, fill(choice.feedback, names), choice.misconception, value, index))
    if len({option.text for option in options}) < len(options):
        raise ValueError(f"two of its choices have the same text: {', '.join(option.text for option in options)}")
    rng.shuffle(options)
    return Options(tuple(options), not isinstance(asked, bank.Multiple))


def _amount(asked: bank.Number, names: dict[str, Value]) -> Amount:
    value = _number(asked.answer, names)
    if not asked.low <= value <= asked.high:
        raise ValueError(f"its answer {value:g} is not between {asked.low:g} and {asked.high:g}")
    mistakes = tuple(
        WrongNumber(_number(m.value or "", names), m.misconception, fill(m.feedback, names)) for m in asked.mistake
    )
    tolerance = asked.tolerance_fraction * abs(value)
    for mistake in mistakes:
        if abs(mistake.value - value) <= 2 * tolerance:
            raise ValueError(f"its answer {value:g} and the mistake {mistake.value:g} cannot be distinguished")
    return Amount(value, tolerance, asked.digits, asked.unit or "", mistakes)


def _order(question: bank.Ordering, names: dict[str, Value], rng: random.Random) -> Order:
    texts = [fill(item.text, names) for item in question.item]
    if question.item[0].value is not None:
        values = [_number(item.value or "", names) for item in question.item]
        in_order = sorted(range(len(texts)), key=values.__getitem__)
        for before, after in pairwise(in_order):
            if math.isclose(values[before], values[after], rel_tol=0.01):
                raise ValueError(
                    f"{texts[before]!r} and {texts[after]!r} have about the same value: {values[before]:g}"
                )
    else:
        in_order = list(range(len(texts)))
    shown = list(range(len(texts)))
    while shown == in_order:  # the items must not be shown in the right order
        rng.shuffle(shown)
    return Order(tuple(texts[index] for index in shown), tuple(shown.index(index) for index in in_order))


def _picture(figure: bank.Figure, names: dict[str, Value]) -> TimelinePicture:
    return TimelinePicture(fill(figure.events, names), fill(figure.title, names), fill(figure.alt, names))


def _number(expression: str, names: dict[str, Value]) -> float:
    value: Any = evaluate(expression, names)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{expression!r} is {value!r}, which is not a finite number")
    return float(value)
