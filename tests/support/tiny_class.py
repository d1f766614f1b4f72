"""A class that hands in the tiny lab, right, wrong or anything, and commands that grade it."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

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


def nbgrader(root: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(Path(sys.executable).with_name("nbgrader")), *words],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )


def note(root: Path, command: str, name: str = "") -> None:
    done = nbgrader(root, *command.split())
    (root / f"{name or command.split()[0]}.log").write_text(f"{done.returncode}\n{done.stdout}{done.stderr}")
