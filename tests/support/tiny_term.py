"""A term in small: three labs, two quizzes and an exam with an essay, played by commands, and what must come of it.

What each student does follows from their number, and so does each score, by arithmetic that shares nothing with the
grader.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import nbformat
import stand_in_judge
from commands import run
from nbgrader.api import Gradebook
from quiz_class import KINDS, right, write_bank
from quiz_samples import ESSAY
from tiny_lab import CHECKS, LAB, MEAN, ROOT, TOTAL, answered

from autograder.authoring.notebooks import build
from autograder.quiz.key import read_key
from autograder.quiz.whole_bank import read_bank

LABS = ("lab01", "lab02", "lab03")
DUE = datetime(2020, 11, 20, 12)
WHY = '\n# %% why [markdown] points=2 tags=["solution"]\n# Because every rank adds its part.\n'
TOO_STRICT = "# mean needs get_rank\n"  # the mistake in lab 3's checks, which is corrected later
WRONG = "def {0}(tensor):\n    return tensor\n"
NUM_QUESTIONS = 6  # that the key marks, on every form
# hours late with lab 2, by number: within the grace period, two days begun, one extended before, one after, and capped
LATE_H = {1: 0.4, 2: 5, 3: 30, 4: 30, 5: 60, 6: 2400}
EXTENDED_DAYS = {4: 2, 5: 1}
DAMAGED, ABSENT = 7, 0  # with lab 1


def name(number: int) -> str:
    return f"s{number:02}"


def points_of_code(number: int, lab: str) -> int:
    """By what the student wrote, and for lab 3 by the corrected checks."""
    if lab == "lab01" and number in (DAMAGED, ABSENT):
        return 0
    return {0: 5, 1: 3, 2: 2, 3: 5}[number % 4]


def points_by_hand(number: int) -> float:
    """For the words in labs 2 and 3."""
    return number % 5 * 0.5


def penalty(number: int, points: float) -> float:
    """Of lab 2: a tenth for each day begun after half an hour of grace, half of it at most."""
    late_h = LATE_H.get(number, 0) - 24 * EXTENDED_DAYS.get(number, 0)
    return points * min(0.1 * math.ceil(late_h / 24), 0.5) if late_h > 0.5 else 0


def score(number: int, assignment: str) -> float:
    """What the exports must give."""
    if assignment == "lab01":
        return points_of_code(number, assignment)
    if assignment == "lab02":
        points = points_of_code(number, assignment) + points_by_hand(number)
        return points - penalty(number, points)
    if assignment == "lab03":
        return points_of_code(number, assignment) + points_by_hand(number)
    marked = number % (NUM_QUESTIONS + 1)
    return marked + (points_of_essay(number) if assignment == "final_exam" else 0)


def points_of_essay(number: int) -> float:
    """Of two; a fifth of the class wrote nothing."""
    return number % 5 * 0.5


@dataclass
class Term:
    """A course, the commands that its instructor typed, and what each printed."""

    root: Path
    num_students: int
    typed: list[tuple[str, ...]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> range:
        return range(self.num_students)

    def do(self, *command: str) -> str:
        """A command that ends well; grading needs the judge that runs nothing."""
        self.typed.append(command)
        if command[:2] == ("autograder", "grade"):
            code, text, _ = stand_in_judge.run(self.root, *command, patience_s=1800)
        else:
            done = run(self.root, *command)
            code, text = done.returncode, done.stdout
        assert code == 0, f"{command}\n{text}"
        self.said.append(text)
        return text

    def read(self, assignment: str, cell: str, points: dict[int, float]) -> None:
        """Give points by hand, as the Formgrader does."""
        with Gradebook(f"sqlite:///{self.root}/gradebook.db", "worldsize") as book:
            for number, given in points.items():
                grade = book.find_grade(cell, assignment, assignment, name(number))
                grade.manual_score, grade.needs_manual_grade = given, False
            book.db.commit()


def play(term: Term) -> None:
    """From the first day to the last export."""
    prepare(term.root, term.num_students)
    term.do("autograder", "roster", "import", "class.csv")
    make_everything(term)
    hand_in_everything(term)
    term.do("autograder", "extend", name(4), "lab02", "--days", "2")
    for assignment in (*LABS, "quiz_two", "final_exam"):
        term.do("autograder", "grade", assignment)
    term.do("autograder", "quiz", "mark", "one/answers/key.json", "responses.csv", "--out", "marks")
    term.do("autograder", "status", "--to", "status.html")

    by_hand = {number: points_by_hand(number) for number in term.numbers}
    for lab in ("lab02", "lab03"):
        term.read(lab, "why", by_hand)
    essays = {number: points_of_essay(number) for number in term.numbers if points_of_essay(number)}
    term.read("final_exam", f"question_{NUM_QUESTIONS + 1}", essays)

    checks = term.root / "solutions/lab03/checks.py"
    checks.write_text(checks.read_text().replace(TOO_STRICT, ""))
    term.do("autograder", "grade", "lab03")
    term.do("autograder", "extend", name(5), "lab02", "--days", "1")
    term.do("autograder", "late", "lab02")
    for assignment in (*LABS, "quiz_two", "final_exam"):
        term.do("autograder", "feedback", assignment)
    term.do("autograder", "status", "--to", "status.html")
    for format in ("csv", "canvas", "moodle", "gradescope"):
        term.do("autograder", "export", format)
    term.do("nbgrader", "export")
    term.do("autograder", "progress", "--all", "--to", "progress.csv")
    term.do("autograder", "audit")


def prepare(root: Path, num_students: int) -> None:
    """Put three labs, a bank and a class list there."""
    for lab in LABS:
        folder = root / "solutions" / lab
        folder.mkdir(parents=True)
        (folder / f"{lab}.py").write_text(LAB if lab == "lab01" else LAB + WHY)
        (folder / "checks.py").write_text(CHECKS + TOO_STRICT * (lab == "lab03"))
    shutil.copy(ROOT / "nbgrader_config.py", root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write("c.Policy.grace_minutes, c.Policy.percent_per_day, c.Policy.cap_percent = 30, 10, 50\n")
    build(root)
    write_bank(root / "quizzes", [*KINDS, ESSAY])
    rows = [
        f"{name(n)},First Last{n},{name(n)}@example.org,{n % 2},{9000 + n},{25 * (n == 3)}" for n in range(num_students)
    ]
    (root / "class.csv").write_text("\n".join(["id,name,email,section,lms id,extra time", *rows]) + "\n")


def make_everything(term: Term) -> None:
    """Release the labs with their due dates, and make the quizzes and the exam."""
    for lab in LABS:
        term.do("nbgrader", "generate_assignment", lab, "--force")
        term.do("nbgrader", "db", "assignment", "add", lab, f"--duedate={DUE:%Y-%m-%d %H:%M:%S} UTC")
    for quiz, more in (("one", ()), ("two", ()), ("exam", ("--essays", "1"))):
        count = str(NUM_QUESTIONS + len(more) // 2)
        words = ("--title", quiz, "--count", count, "--key-file", f"{quiz}.key", "--out", quiz, "--format", "ipynb")
        term.do("autograder", "quiz", "make", *words, *more)
    for quiz, assignment in (("two", "quiz_two"), ("exam", "final_exam")):
        term.do("autograder", "quiz", "assign", f"{quiz}/answers/key.json", assignment)
        term.do("nbgrader", "generate_assignment", assignment)


def hand_in_everything(term: Term) -> None:
    """What the class does: no command of the instructor's."""
    for lab in LABS:
        release = nbformat.read(term.root / "labs" / lab / f"{lab}.ipynb", as_version=4)
        for number in term.numbers:
            hand_in_lab(term.root, lab, release, number)
    late = {number: DUE + timedelta(hours=hours) for number, hours in LATE_H.items()}
    rows = [f"lab02,{name(number)},{time:%Y-%m-%d %H:%M:%S} UTC" for number, time in late.items()]
    (term.root / "collected.csv").write_text("\n".join(["assignment,student,submitted", *rows]) + "\n")
    hand_in_quizzes(term)


def hand_in_lab(root: Path, lab: str, release: nbformat.NotebookNode, number: int) -> None:
    if lab == "lab01" and number == ABSENT:
        return
    points = {0: 5, 1: 3, 2: 2, 3: 5}[number % 4]
    cells = {"total": TOTAL if points != 2 else WRONG.format("total"), "why": f"Because of {number}."}
    cells["mean"] = MEAN if points != 3 else WRONG.format("mean")
    text = nbformat.writes(answered(deepcopy(release), cells))
    folder = root / "submitted" / name(number) / lab
    folder.mkdir(parents=True)
    is_damaged = lab == "lab01" and number == DAMAGED
    (folder / f"{lab}.ipynb").write_text(text[:-300] if is_damaged else text)


def hand_in_quizzes(term: Term) -> None:
    """Everybody gets as many of the six questions right as the number says, modulo seven."""
    bank = read_bank(term.root / "quizzes")
    with open(term.root / "responses.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["student", "question", "response"])
        for number, form in enumerate(read_key(term.root / "one/answers/key.json", bank)):
            for place, variant in enumerate(form.variants[: number % (NUM_QUESTIONS + 1)], start=1):
                rows.writerow([form.student.id, place, right(variant.answer)])
    for quiz, assignment in (("two", "quiz_two"), ("exam", "final_exam")):
        for number, form in enumerate(read_key(term.root / quiz / "answers/key.json", bank)):
            handed_out = term.root / "handouts" / assignment / form.student.id / f"{assignment}.ipynb"
            notebook = nbformat.read(handed_out, as_version=4)
            cells = {cell.id: cell for cell in notebook.cells}
            for place, variant in enumerate(form.variants[: number % (NUM_QUESTIONS + 1)], start=1):
                cell = cells[f"question_{place}"]
                cell.source = cell.source.replace("None", json.dumps(right(variant.answer)))
            if assignment == "final_exam" and points_of_essay(number):
                cells[f"question_{NUM_QUESTIONS + 1}"].source = f"Sums go round, says {number}."
            folder = term.root / "submitted" / form.student.id / assignment
            folder.mkdir(parents=True)
            (folder / f"{assignment}.ipynb").write_text(nbformat.writes(notebook))
