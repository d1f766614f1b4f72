"""Key of a quiz, stored in a file: every student's questions and seeds, so that the forms can be drawn again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from autograder.quiz.blueprint import Blueprint
from autograder.quiz.forms import AskedQuestion, Form
from autograder.tables.roster import Student
from worldsize.quiz import Question, Variant, draw
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Phrase, Prose


class _KeyPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeyEntry(_KeyPart):
    """One question of one form; `fingerprint` is that of its text and answer."""

    question: str
    seed: str
    fingerprint: str
    answer: str


class KeyForm(_KeyPart):
    """What one student was asked, in order."""

    student: str
    name: str
    asked: list[KeyEntry]


class Key(_KeyPart):
    """The key of a quiz; `version` is that of this layout."""

    version: int = 1
    blueprint: Blueprint
    forms: list[KeyForm]


def key_of(forms: Sequence[Form]) -> Key:
    """The key of these forms, all of the same quiz."""
    return Key(blueprint=forms[0].blueprint, forms=[_entry_of(form) for form in forms])


def parse_key(file: Path) -> Key:
    """Read a key from a file. Raises: ValueError if it is not a key."""
    try:
        return Key.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(f"{file} cannot be read as the key of a quiz: {error}.") from error


def read_key(file: Path, questions: Sequence[Question], student: str | None = None) -> list[Form]:
    """Draw the forms of a key again from the bank: all, or only one student's.

    Raises:
        ValueError: the file is not a key, or the bank has changed since: names the questions that changed.
    """
    key = parse_key(file)
    known = {question.id: question for question in questions}
    changed: set[str] = set()
    forms = []
    for given in key.forms:
        if student is not None and given.student.casefold() != student.casefold():
            continue
        asked = []
        for entry in given.asked:
            question = known.get(entry.question)
            variant = question and draw(question, entry.seed)
            if variant is None or fingerprint(variant) != entry.fingerprint:
                changed.add(entry.question)
                continue
            asked.append(AskedQuestion(entry.seed, variant))
        forms.append(Form(Student(given.student, given.name), key.blueprint, tuple(asked)))
    if changed:
        raise ValueError(
            f"{', '.join(sorted(changed))}: the bank has changed since {file.name} was made, so these are no longer "
            "the questions that were asked. Mark with the bank as it was then."
        )
    return forms


def fingerprint(variant: Variant) -> str:
    """A short hash of a variant's text and right answer."""
    return hashlib.sha256(f"{variant.text}\0{variant.answer!r}".encode()).hexdigest()[:16]


def printed(answer: Answer) -> str:
    """The right answer as a key prints it: letters of options, numbers with units, words, letters of items in order.

    For an essay, only the points: the rubric is part of the key's explanation of the question.
    """
    match answer:
        case Options():
            return ", ".join(letter(place) for place in sorted(answer.right))
        case Amount():
            return f"{answer.text} (± {answer.tolerance:.3g})"
        case Phrase():
            return " or ".join(answer.accepted)
        case Prose():
            return f"graded by hand, {answer.points:g} points"
        case Gaps():
            return "; ".join(f"({place}) {printed(gap)}" for place, gap in enumerate(answer.gaps.values(), start=1))
        case _:
            return " ".join(letter(place) for place in answer.places)


def letter(place: int) -> str:
    """The letter of an option or an item: A for the first."""
    return chr(ord("A") + place)


def _entry_of(form: Form) -> KeyForm:
    asked = [
        KeyEntry(
            question=one.variant.question.id,
            seed=one.seed,
            fingerprint=fingerprint(one.variant),
            answer=printed(one.variant.answer),
        )
        for one in form.asked
    ]
    return KeyForm(student=form.student.id, name=form.student.name, asked=asked)
