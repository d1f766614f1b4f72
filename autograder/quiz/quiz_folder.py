"""Writing a quiz to a folder: every form in every format, the key, and a summary; all of it or nothing.

Files for students are in `handouts/`. Files with answers are in `answers/`, which only the owner can open.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from autograder.files import neutral
from autograder.quiz.atomic_folder import PRIVATE_FOLDER, in_place_of, write_private
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.form_writers import Done, FormatFolder, writers
from autograder.quiz.formats import FORMATS
from autograder.quiz.formats.format import Format
from autograder.quiz.forms import Form, deal
from autograder.quiz.forms_summary import summary_text
from autograder.quiz.key import Key, key_of, printed
from autograder.tables.roster import Student
from worldsize.cores import num_cores
from worldsize.quiz import Question

HANDOUTS, ANSWERS = "handouts", "answers"
KEY, KEY_TABLE, SUMMARY = "key.json", "key.csv", "summary.txt"
# all other formats are treated as containing answers: learning platforms need them for marking
HANDED_OUT = {"html", "ipynb", "md", "pdf"}
_BATCH = 10  # forms per task of a process
_FEW = 20  # too few forms to start another process for


@dataclass(frozen=True)
class QuizInputs:
    """Everything that decides a quiz: the same blueprint, bank, roster, key and formats give the same bytes."""

    blueprint: Blueprint
    questions: Sequence[Question]
    roster: Sequence[Student]
    key: bytes
    formats: Sequence[Format]


def write_quiz(
    quiz: QuizInputs, out: Path, *, force: bool = False, jobs: int | None = None, done: Done = lambda num_forms: None
) -> str:
    """Write a quiz to `out`, which appears only when it is complete, and return the summary.

    `done` is called with the number of forms just written.

    Raises:
        ValueError: `out` holds other things, or (without `force`) an earlier quiz; or the quiz cannot be drawn.
    """
    refuse_to_destroy(out, force)
    num_processes = min(jobs or num_cores(), 1 + len(quiz.roster) // _FEW)
    with in_place_of(out) as folder:
        (folder / ANSWERS).mkdir(mode=PRIVATE_FOLDER)
        places = [
            FormatFolder(format, folder / place_of(format), is_private=format.name not in HANDED_OUT)
            for format in quiz.formats
        ]
        for place in places:
            place.folder.mkdir(mode=PRIVATE_FOLDER if place.is_private else 0o777, parents=True)
        forms: list[Form] = []
        with writers(num_processes) as write:
            dealt = deal(quiz.blueprint, quiz.questions, quiz.roster, quiz.key)
            while batch := list(islice(dealt, _BATCH)):
                forms += batch
                write(batch, places, done)
        # only after the processes have ended, because it takes as much memory as one of them
        _write_keys(forms, quiz.formats, folder / ANSWERS)
        summary = summary_text(forms, [format.name for format in quiz.formats])
        (folder / SUMMARY).write_text(summary, encoding="utf-8")
    return summary


def place_of(format: Format) -> str:
    """The folder of the forms in a format, relative to the folder of the quiz."""
    return f"{HANDOUTS if format.name in HANDED_OUT else ANSWERS}/{format.name}"


def refuse_to_destroy(out: Path, force: bool) -> None:
    """Raise ValueError if a folder has files that are not part of a quiz or, without `force`, has an earlier quiz."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is not a folder: name another one.")
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    if others := sorted(files - _files_of_a_quiz(out / ANSWERS / KEY)):
        raise ValueError(f"{out} holds {others[0]}, which is not part of a quiz: name a new or an empty folder.")
    if files and not force:
        raise ValueError(f"{out} holds a quiz already: name another folder, or replace it with --force.")


def _files_of_a_quiz(key: Path) -> set[str]:
    """The files that `write_quiz` writes together with this key; empty if it is not a key."""
    try:
        students = [form.student for form in Key.model_validate_json(key.read_bytes()).forms]
    except (OSError, ValidationError):
        return set()
    files = {f"{place_of(format)}/{student}{format.suffix}" for format in FORMATS.values() for student in students}
    keys = {KEY, KEY_TABLE} | {f"key{format.suffix}" for format in FORMATS.values() if format.key}
    return files | {SUMMARY} | {f"{ANSWERS}/{key}" for key in keys}


def _write_keys(forms: Sequence[Form], formats: Sequence[Format], folder: Path) -> None:
    """Write the key as JSON, as a table, and in every format that has one."""
    keys = {KEY: (key_of(forms).model_dump_json(indent=1) + "\n").encode(), KEY_TABLE: _table(forms)}
    keys |= {f"key{format.suffix}": format.key(forms) for format in formats if format.key}
    for name, content in keys.items():
        write_private(folder / name, content)


def _table(forms: Sequence[Form]) -> bytes:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["student", "number", "question", "variant", "answer"])
    for form in forms:
        for number, variant in enumerate(form.variants, start=1):
            answer = printed(variant.answer)
            table.writerow([form.student.id, number, variant.question.id, variant.id, neutral(answer)])
    return text.getvalue().encode("utf-8-sig")  # spreadsheets recognise UTF-8 by its byte order mark
