"""A form for each student, drawn with a keyed hash: unpredictable without the key, repeatable with it."""

from __future__ import annotations

import hashlib
import hmac
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autograder.quiz.blueprint import Blueprint, BlueprintCell, shares
from autograder.tables.roster import Student
from worldsize.quiz import Question, Variant, draw

MOST_SHARED = 0.1  # the largest share of parametrised variants that two forms may have in common
_TRIES = 200


@dataclass(frozen=True)
class AskedQuestion:
    """One question of a form, and the seed with which `worldsize.quiz.draw` draws it again."""

    seed: str
    variant: Variant


@dataclass(frozen=True)
class Form:
    """The questions of one student, in order, essays last."""

    student: Student
    blueprint: Blueprint
    asked: tuple[AskedQuestion, ...]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The questions as this student gets them."""
        return tuple(one.variant for one in self.asked)

    @property
    def minutes(self) -> float:
        """The time that the form should take, the sum over its questions."""
        return sum(variant.question.minutes for variant in self.variants)

    @property
    def allowed_minutes(self) -> float:
        """The time limit of this student: the quiz's, or the sum over the questions, plus the student's extra time."""
        minutes = self.blueprint.minutes or self.minutes
        extra_percent = self.student.extra_time_percent
        return math.ceil(round(minutes * (1 + extra_percent / 100), 6)) if extra_percent else minutes

    @property
    def out_of(self) -> float:
        """The points that can be earned."""
        return sum(variant.question.points for variant in self.variants)


def deal(blueprint: Blueprint, questions: Sequence[Question], roster: Sequence[Student], key: bytes) -> Iterator[Form]:
    """Draw a form for each student, in the order of the roster, repeatable with the same arguments.

    All forms have equally many questions of each week and difficulty, and equally many essays. If two forms would have
    too many variants in common, the later one is drawn again.

    Raises:
        ValueError: the bank has too few questions, or a question cannot be drawn.
    """
    cells = shares(blueprint, questions)
    stock: dict[BlueprintCell, list[Question]] = defaultdict(list)
    for question in sorted(questions, key=lambda one: one.id):
        if blueprint.allows(question):
            stock[BlueprintCell.of(question)].append(question)
    holders: dict[str, list[int]] = defaultdict(list)  # which forms have a variant
    for place, student in enumerate(roster):
        form = _form(blueprint, cells, stock, student, key, holders)
        for id in _parametrised(form):
            holders[id].append(place)
        yield form


def _form(
    blueprint: Blueprint,
    cells: dict[BlueprintCell, int],
    stock: dict[BlueprintCell, list[Question]],
    student: Student,
    key: bytes,
    holders: dict[str, list[int]],
) -> Form:
    best: tuple[float, Form] | None = None
    for attempt in range(_TRIES):
        form = _drawn(blueprint, cells, stock, student, key, attempt)
        if blueprint.minutes is not None and form.minutes > blueprint.minutes:
            continue
        shared = _most_shared(form, holders)
        if best is None or shared < best[0]:
            best = shared, form
        if shared < MOST_SHARED:
            break
    if best is None:
        raise ValueError(
            f"No form of {blueprint.count} questions took {blueprint.minutes:g} minutes or less in {_TRIES} "
            "draws: allow more minutes or ask for fewer questions."
        )
    return best[1]


def _drawn(
    blueprint: Blueprint,
    cells: dict[BlueprintCell, int],
    stock: dict[BlueprintCell, list[Question]],
    student: Student,
    key: bytes,
    attempt: int,
) -> Form:
    chance = random.Random(_seed(key, blueprint.title, student.id, "questions", str(attempt)))
    chosen = [question for cell, num in cells.items() for question in chance.sample(stock[cell], num)]
    chance.shuffle(chosen)
    chosen.sort(key=lambda question: question.kind == "essay")  # last, so that they have the same numbers on every form
    asked = []
    for question in chosen:
        seed = _seed(key, blueprint.title, student.id, question.id, str(attempt))
        asked.append(AskedQuestion(seed, draw(question, seed)))
    return Form(student, blueprint, tuple(asked))


def _seed(key: bytes, *words: str) -> str:
    """A keyed hash of the words, which cannot be computed without the key."""
    return hmac.new(key, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def _parametrised(form: Form) -> list[str]:
    return [variant.id for variant in form.variants if variant.parameters]


def _most_shared(form: Form, holders: dict[str, list[int]]) -> float:
    """The largest share of the form's parametrised variants that one earlier form also has."""
    ids = _parametrised(form)
    counts: dict[int, int] = defaultdict(int)
    for id in ids:
        for place in holders.get(id, ()):
            counts[place] += 1
    return max(counts.values(), default=0) / max(1, len(ids))
