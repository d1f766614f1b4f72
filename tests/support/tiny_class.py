"""A class that hands in the tiny lab, right, wrong or anything, and commands that grade it."""

import json
from copy import deepcopy
from pathlib import Path

from commands import run
from tiny_lab import MEAN, NAME, TOTAL, answered, release

from autograder.course import open_course
from autograder.grading.lab import Lab

RIGHT = {"total": TOTAL, "mean": MEAN}
CONFIG = """
c.Grade.call_s = 10
c.Grade.total_s = 60
c.Execute.kernel_name = "no kernel is needed"
"""


def hand_in(root, student, *, is_right=True):
    cells = {"total": TOTAL if is_right else "def total(tensor):\n    return tensor", "mean": MEAN}
    place(root, student, json.dumps(answered(deepcopy(release(root)), cells)))


def place(root, student, text):
    folder = root / "submitted" / student / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.ipynb").write_text(text)


def lab(root):
    return Lab(open_course(root), NAME)


def note(root: Path, command: str, name: str = "") -> None:
    done = run(root, "nbgrader", *command.split())
    (root / f"{name or command.split()[0]}.log").write_text(f"{done.returncode}\n{done.stdout}")
