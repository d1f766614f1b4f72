"""What a class's grades are when the grader is killed again and again, and started again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import psutil
from figures import Figure, scaled
from processes import are_gone
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course, release

from autograder.grading.audit_log import LOG, read
from autograder.grading.lab import KEPT

NUM_STUDENTS, NUM_KILLS, SEED = 12, 10, 5
AUTOGRADER = str(Path(sys.executable).with_name("autograder"))
GRADES = """
SELECT student.id, base_cell.name, grade.auto_score, grade.manual_score, grade.extra_credit, grade.needs_manual_grade
FROM grade JOIN submitted_notebook ON submitted_notebook.id = grade.notebook_id
JOIN submitted_assignment ON submitted_assignment.id = submitted_notebook.assignment_id
JOIN student ON student.id = submitted_assignment.student_id
JOIN base_cell ON base_cell.id = grade.cell_id ORDER BY student.id, base_cell.name
"""


@dataclass
class Trial:
    """What was found after one kill and what followed."""

    is_same: bool
    is_sound: bool
    num_judged_again: int
    num_entered_again: int
    num_left: int


def killing(scale: float) -> Iterator[Figure]:
    """Whether grading that is killed at random moments and started again ends as if it had not been."""
    num_students, num_kills = scaled(NUM_STUDENTS, scale, least=3), scaled(NUM_KILLS, scale)
    with tempfile.TemporaryDirectory(prefix="bench-killing-") as folder:
        start = _course(Path(folder, "start"), num_students)
        undisturbed = _copy(start, "undisturbed")
        begun_s = time.monotonic()
        _grade(undisturbed)
        duration_s = time.monotonic() - begun_s
        moments = random.Random(SEED)
        trials = [
            _trial(_copy(start, f"killed{number}"), moments.uniform(0, duration_s), _grades(undisturbed), num_students)
            for number in range(num_kills)
        ]
    how = f"{num_kills} kills at random moments of {duration_s:.0f} s, {num_students} submissions"
    for name, value in (
        ("killed and started again: other grades", sum(not one.is_same for one in trials)),
        ("killed: database or audit log not whole", sum(not one.is_sound for one in trials)),
        ("killed: judged twice", sum(one.num_judged_again for one in trials)),
        ("killed: processes and folders left", sum(one.num_left for one in trials)),
    ):
        yield Figure(name, value, "", "0", value == 0, how)
    again = sum(one.num_entered_again for one in trials)
    how = "entries of the audit log beyond one a student; each kill may fall between the log and the gradebook"
    yield Figure("killed: entered twice", again, "", f"at most {num_kills}", again <= num_kills, how)


def _course(root: Path, num_students: int) -> Path:
    """A course with submissions that get 5 points, 2 points and, damaged, none."""
    make_course(root)
    wrong = "def total(tensor):\n    return tensor"
    for number in range(num_students):
        cells = {"total": TOTAL if number % 2 else wrong, "mean": MEAN}
        path = root / "submitted" / f"student{number:02}" / NAME / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(answered(deepcopy(release(root)), cells)))
    path.write_text("damaged")
    command = [str(Path(sys.executable).with_name("nbgrader")), "generate_assignment", NAME, "--force"]
    subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=300)
    return root


def _copy(course: Path, name: str) -> Path:
    return shutil.copytree(course, course.with_name(name))


def _trial(root: Path, at_s: float, wanted: list[tuple], num_students: int) -> Trial:
    grader = subprocess.Popen(
        [AUTOGRADER, "grade", NAME], cwd=root, env=_env(root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(at_s)  # the moment itself is what is drawn
    started = [one.pid for one in psutil.Process(grader.pid).children(recursive=True)] if grader.poll() is None else []
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    before = _seeds(root)
    _grade(root)
    seeds = _seeds(root)
    with sqlite3.connect(root / "gradebook.db") as database:
        is_sound = database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    audit = subprocess.run([AUTOGRADER, "audit"], cwd=root, capture_output=True, timeout=120)
    entries = Counter(entry.student for entry in read(root / LOG)[0])
    return Trial(
        is_same=_grades(root) == wanted,
        is_sound=is_sound and audit.returncode == 0 and len(entries) == num_students,
        num_judged_again=sum(seeds[path] != seed for path, seed in before.items()),
        num_entered_again=entries.total() - num_students,
        num_left=len(_left(root)) + (not are_gone(started, within_s=20)),
    )


def _env(root: Path) -> dict[str, str]:
    """With a folder for temporary files that nobody else uses."""
    (root / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(root / "tmp")}


def _left(root: Path) -> list[Path]:
    """What killed graders have left: temporary files, and files that were half written."""
    return [*(root / "tmp").iterdir(), *(root / "build").rglob("tmp*"), *(root / "gradebook-audit").rglob("tmp*")]


def _grade(root: Path) -> None:
    done = subprocess.run(
        [AUTOGRADER, "grade", NAME], cwd=root, env=_env(root), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _grades(root: Path) -> list[tuple]:
    with sqlite3.connect(root / "gradebook.db") as database:
        return database.execute(GRADES).fetchall()


def _seeds(root: Path) -> dict[Path, int | None]:
    """The seed of every kept judgement."""
    found = {}
    for path in (root / KEPT / NAME).glob("*.json"):
        report = json.loads(path.read_text())["report"]
        found[path] = report and report["seed"]
    return found
