"""A bank with a question of every kind in a folder, a class with a form each, and what the class may answer."""

import json
import random

from quiz_samples import CLOZE, FIGURE, HEAD, NUMERIC, ORDERING, SINGLE, WORDS

from autograder.quiz.blueprint import Blueprint
from autograder.quiz.forms import deal
from autograder.quiz.key import key_of, letter
from autograder.quiz.whole_bank import read_bank
from autograder.tables.roster import Student
from worldsize.quiz.variant import Amount, Gaps, Options, Order

MULTIPLE = f"""
id = "t-even"
kind = "multiple"
{HEAD}
text = "Which are *even*: $a_1$ & more?"
choice = [
    {{text = "four; 4", correct = true, feedback = "Two twos."}},
    {{text = "five, 5", correct = false, misconception = "odd is even", feedback = "One is left."}},
    {{text = "`six`", correct = true, feedback = "Three twos."}},
    {{text = "seven", correct = false, misconception = "odd is even", feedback = "One is left."}},
]
"""
KINDS = [SINGLE, MULTIPLE, NUMERIC, ORDERING + FIGURE, WORDS, CLOZE]
STUDENTS = [Student("ada", "Ada Lovelace"), Student("bob", "=cmd()"), Student("c3", "Ćelik")]


def bank_text(texts=KINDS):
    """The text of a file of the bank."""
    tables = [text.replace("[gap.", "[question.gap.").replace("[figure]", "[question.figure]") for text in texts]
    return "\n".join(['title = "a test"', *(f"\n[[question]]\n{table}" for table in tables)])


def write_bank(folder, texts=KINDS):
    """The folder of quizzes, which is written here with one file, `week02`."""
    folder.mkdir(exist_ok=True)
    (folder / "week02.toml").write_text(bank_text(texts), encoding="utf-8")
    return folder


def a_class(folder, students=STUDENTS):
    """The forms of a class, with the path of their key; the bank is in `folder/quizzes`."""
    questions = read_bank(write_bank(folder / "quizzes"))
    forms = list(deal(Blueprint(title="Test", count=len(KINDS), pass_fraction=0.5), questions, students, b"secret"))
    key = folder / "key.json"
    key.write_text(key_of(forms).model_dump_json(), encoding="utf-8")
    return forms, key


def right(answer):
    """The right answer as the table of responses takes it."""
    match answer:
        case Options():
            return ", ".join(letter(place) for place in sorted(answer.right))
        case Amount():
            return answer.text
        case Order():
            return " ".join(map(letter, answer.places))
        case Gaps():
            return "; ".join(f"{number}: {right(gap)}" for number, gap in enumerate(answer.gaps.values(), start=1))
        case _:
            return answer.accepted[0]


def number_of(form, kind):
    """The number in a form of its question of this kind."""
    return next(n for n, one in enumerate(form.variants, start=1) if one.question.kind == kind)


def notebook(form, answers, student=None):
    """A form as a notebook with these answers, by number, as source code."""
    cells = [
        {
            "cell_type": "code",
            "id": f"question_{number}",
            "metadata": {},
            "source": f"answer_{number} = {answers.get(number, None)}  # such as A",
            "outputs": [],
            "execution_count": None,
        }
        for number in range(1, len(form.asked) + 1)
    ]
    metadata = {"quiz": {"student": student or form.student.id}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def shuffled(things, seed):
    """The things in an order of this seed."""
    return random.Random(seed).sample(list(things), len(things))
