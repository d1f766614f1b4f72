"""Checking the options of `autograder quiz`: messages name them as users type them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autograder.quiz import secret_key
from autograder.quiz.blueprint import FILE, Blueprint, read_blueprints, shares
from autograder.quiz.formats import FORMATS, pdf
from autograder.quiz.formats.format import Format
from autograder.quiz.forms import Form
from autograder.quiz.hand_points import ByHand, HandPoints, read_hand_points
from autograder.quiz.marked_forms import MarkedForm
from autograder.quiz.quiz_folder import QuizInputs
from autograder.quiz.responses import Responses
from autograder.quiz.whole_bank import read_bank
from autograder.tables.roster import read_roster

PAPERS: Mapping[str, pdf.Paper] = {"a4": "a4", "letter": "us-letter"}


def chosen_quiz(
    bank: Path,
    roster: Path,
    blueprint: str | None,
    changes: Mapping[str, Any],
    formats: Sequence[str],
    paper: str,
    key_file: Path | None,
    seed: int | None,
) -> QuizInputs:
    """The quiz that these options ask for; a secret is created once nothing else can be wrong.

    Raises:
        ValueError: options contradict each other, or a file that one names cannot be used.
    """
    if (key_file is None) == (seed is None):
        raise ValueError("Give either --key-file, a secret that is created if absent, or --seed for a demonstration.")
    plan = blueprint_of(bank, blueprint, changes)
    chosen_formats = _formats(formats, paper)
    students, questions = read_roster(roster), read_bank(bank)
    shares(plan, questions)  # raises if the bank has too few questions
    key = secret_key.read_or_create(key_file) if key_file else f"seed {seed}".encode()
    return QuizInputs(plan, questions, students, key, chosen_formats)


def font_warning(quiz: QuizInputs) -> str | None:
    """A sentence about a character that no font here has, if it occurs in a name and names are written to PDF."""
    if all(format.name != "pdf" for format in quiz.formats):
        return None
    missing = pdf.without_a_font(" ".join(student.name for student in quiz.roster))
    if missing is None:
        return None
    return (
        f"No font on this machine has {missing!r}: PDFs show a box in its place. Install a font that has it, such "
        "as Google's Noto, and make the quiz again."
    )


def points_by_hand(
    file: Path | None, earlier: Path, forms: Sequence[Form], encoding: str | None
) -> dict[tuple[str, int], HandPoints]:
    """The points given to essays, read from a file or, without one, from earlier marks; empty without either."""
    if file is None and not earlier.is_file():
        return {}
    return read_hand_points(file or earlier, forms, encoding)


def refuse_to_lose_points(by_hand: ByHand, marked_forms: Sequence[MarkedForm]) -> None:
    """Raise ValueError if points were given to a version of an answer that is not the submitted one."""
    waiting = {
        (one.form.student.id, answer.number) for one in marked_forms for answer in one.answered if answer.is_waiting
    }
    if stale := sorted(waiting & by_hand.keys()):
        listed = "\n".join(f"{student}, question {number}" for student, number in stale)
        raise ValueError(
            f"Points were given to answers that have changed since:\n{listed}\n"
            "Nothing was written. Read these again: clear their points and run this again, which lists them anew."
        )


def refuse_problems(responses: Responses, unreadable_as_zero: bool, ignore_unknown: bool) -> None:
    """Raise ValueError with every problem of the responses that these options do not excuse."""
    serious = [one for one in responses.problems if one.number is None or not unreadable_as_zero]
    serious += [] if ignore_unknown else responses.strangers
    if not serious:
        return
    advice = ["Nothing was written. Correct these in the responses"]
    if any(one.number for one in serious):
        advice.append("or give unreadable responses 0 points with --unreadable-as-zero")
    if responses.strangers and not ignore_unknown:
        advice.append("or leave out students without a form with --ignore-unknown")
    raise ValueError("\n".join([*map(str, serious), ", ".join(advice) + "."]))


def blueprint_of(folder: Path, name: str | None, wanted: Mapping[str, Any]) -> Blueprint:
    """The named blueprint with these options applied, or a new one."""
    changes = {key: value for key, value in wanted.items() if value not in (None, [])}
    if name is None:
        if "count" not in changes:
            raise ValueError(
                "Say which quiz: --blueprint NAME, or --count with --pool, --week, --objective or --difficulty."
            )
        given: dict[str, Any] = {"title": _titled(changes.get("weeks", []))}
    else:
        known = read_blueprints(folder)
        if name not in known:
            listed = ", ".join(sorted(known)) or "(none)"
            raise ValueError(f"There is no blueprint {name!r} in {folder / FILE}: choose one of {listed}.")
        given = known[name].model_dump()
    try:
        plan = Blueprint.model_validate({**given, **changes})
    except ValidationError as error:
        problems = (f"{' '.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ValueError(f"These options do not make a quiz: {'; '.join(problems)}.") from error
    if plan.needs_week and not plan.weeks:
        raise ValueError(f"{name!r} needs its weeks: name them with --week.")
    return plan


def _formats(names: Sequence[str], paper: str) -> list[Format]:
    """The formats with these names, or all formats; PDF has this paper size."""
    if unknown := [name for name in names if name not in FORMATS]:
        raise ValueError(f"There is no format {unknown[0]!r}: choose from {', '.join(FORMATS)}.")
    if paper not in PAPERS:
        raise ValueError(f"There is no paper {paper!r}: choose one of {', '.join(PAPERS)}.")
    chosen = {**FORMATS, "pdf": pdf.on(PAPERS[paper])}
    return [chosen[name] for name in FORMATS if not names or name in names]


def _titled(weeks: Sequence[int]) -> str:
    listed = sorted(set(weeks))
    if not listed:
        return "Quiz"
    if len(listed) == 1:
        return f"Quiz, week {listed[0]}"
    return f"Quiz, weeks {', '.join(map(str, listed[:-1]))} and {listed[-1]}"
