"""The whole bank: the questions of all of its files."""

from __future__ import annotations

from pathlib import Path

from autograder.quiz.blueprint import FILE
from worldsize.quiz import Question, load


def read_bank(folder: Path) -> list[Question]:
    """Read the questions of every file in a folder, in the order of the files.

    Raises:
        ValueError: a file is malformed, two questions have the same id, or there are no questions.
    """
    names = sorted(file.stem for file in folder.glob("*.toml") if file.name != FILE)
    if not names:
        raise ValueError(f"{folder} holds no questions: it should have files such as week01.toml.")
    found: dict[str, str] = {}
    questions: list[Question] = []
    for name in names:
        for question in load(name, folder).question:
            if question.id in found:
                raise ValueError(f"{name}.toml: {question.id} is the id of a question in {found[question.id]}.toml.")
            found[question.id] = name
            questions.append(question)
    return questions
