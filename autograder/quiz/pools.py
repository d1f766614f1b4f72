"""One file for a class to import: for each slot of a quiz, variants of which the platform draws one per student.

The questions of a slot are of one week and difficulty, so all students get equally hard ones; no question is in two
slots, so no student is asked it twice. The platform draws and marks; there are no forms and no key.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.quiz.atomic_folder import PRIVATE_FOLDER, in_place_of, write_private
from autograder.quiz.blueprint import Blueprint, BlueprintCell, shares
from autograder.quiz.formats import canvas, moodle
from worldsize.quiz import Question, Variant, draw
from worldsize.units import number_of

SUMMARY = "summary.txt"
_TRIES = 20  # attempts per variant to draw a new one
WRITERS: dict[str, tuple[str, Callable[[str, Sequence[Sequence[Variant]]], bytes]]] = {
    "moodle": ("quiz.moodle.xml", moodle.render_pools),
    "canvas": ("quiz.canvas.zip", canvas.render_groups),
}


@dataclass(frozen=True)
class Slot:
    """A slot of a quiz: the questions that it may hold, and their variants."""

    cell: BlueprintCell
    questions: Sequence[Question]
    variants: Sequence[Variant]


def fill_slots(blueprint: Blueprint, questions: Sequence[Question], num_variants: int, key: bytes) -> list[Slot]:
    """Fill the slots of a quiz, essays last; repeatable with the same arguments.

    If the longest questions together would take too long, the longest ones of a slot are left out.

    Raises:
        ValueError: the bank has too few questions, or too few short ones.
    """
    chance = random.Random(_seed(key, blueprint.title, "slots"))
    groups: list[tuple[BlueprintCell, list[Question]]] = []
    for cell, num in shares(blueprint, questions).items():
        stock = sorted(
            (one for one in questions if blueprint.allows(one) and BlueprintCell.of(one) == cell), key=lambda q: q.id
        )
        chance.shuffle(stock)
        groups += [(cell, stock[place::num]) for place in range(num)]
    _shorten([group for _, group in groups], blueprint)
    chance.shuffle(groups)
    groups.sort(key=lambda group: group[0].is_essay)
    return [Slot(cell, group, _variants(group, num_variants, key)) for cell, group in groups]


def longest_minutes(groups: Sequence[Sequence[Question]]) -> float:
    """The time for the longest questions that one student can draw."""
    return sum(max(question.minutes for question in group) for group in groups)


def _shorten(groups: Sequence[list[Question]], blueprint: Blueprint) -> None:
    while blueprint.minutes is not None and longest_minutes(groups) > blueprint.minutes:
        long = max(groups, key=lambda group: max(q.minutes for q in group) - min(q.minutes for q in group))
        most = max(question.minutes for question in long)
        kept = [question for question in long if question.minutes < most]
        if not kept:
            raise ValueError(
                f"{blueprint.count} questions take {longest_minutes(groups):g} minutes, and {blueprint.minutes:g} are "
                "allowed: allow more minutes, or ask for fewer questions."
            )
        long[:] = kept


def _variants(questions: Sequence[Question], num_variants: int, key: bytes) -> list[Variant]:
    """Draw distinct variants of the questions in turn; fewer than `num_variants` if there are no more."""
    found: dict[str, Variant] = {}
    for place in range(_TRIES * num_variants):
        if len(found) == num_variants:
            break
        question = questions[place % len(questions)]
        variant = draw(question, _seed(key, question.id, str(place)))
        found.setdefault(variant.id, variant)
    return list(found.values())


def _seed(key: bytes, *words: str) -> str:
    return hmac.new(key, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def write_pools(blueprint: Blueprint, slots: Sequence[Slot], systems: Sequence[str], out: Path) -> str:
    """Write a file for each system into a folder that only its owner can open, and return the summary.

    Raises:
        ValueError: the folder is not empty, or a question cannot be written for a system.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not an empty folder: name a new one.")
    variants = [slot.variants for slot in slots]
    summary = _summary(blueprint, slots)
    with in_place_of(out) as folder:
        folder.chmod(PRIVATE_FOLDER)
        for name, render in (WRITERS[system] for system in systems):
            write_private(folder / name, render(blueprint.title, variants))
        write_private(folder / SUMMARY, summary.encode())
    return summary


def _summary(blueprint: Blueprint, slots: Sequence[Slot]) -> str:
    sizes = [len(slot.variants) for slot in slots]
    of_weeks: dict[int, int] = defaultdict(int)
    for slot in slots:
        of_weeks[slot.cell.week] += 1
    lines = [
        f"{blueprint.title}: {number_of(len(slots), 'slot')}, {number_of(sum(sizes), 'variant')}, "
        f"{min(sizes)} and more in a slot.",
        f"minutes          {longest_minutes([slot.questions for slot in slots]):g} at most",
        f"weeks            {', '.join(f'week {week}: {num}' for week, num in sorted(of_weeks.items()))}",
        "",
        *(f"slot {place:02}  {_described(slot)}" for place, slot in enumerate(slots, start=1)),
    ]
    return "\n".join(lines) + "\n"


def _described(slot: Slot) -> str:
    questions = ", ".join(sorted({variant.question.id for variant in slot.variants}))
    of = f"week {slot.cell.week}, difficulty {slot.cell.difficulty}"
    return f"{of}, {number_of(len(slot.variants), 'variant')} of {questions}"
