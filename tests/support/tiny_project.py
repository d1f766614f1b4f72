"""A course with one small project: the real program, judged by two quick checks; and what else may be handed in."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import nbformat
from tiny_lab import ROOT

from autograder.authoring import programs
from autograder.authoring.notebooks import build

NAME = "project9"
PROGRAM = "train.py"
REPORT = """\
# %% [markdown]
# # A small project

# %% share tags=["solution"]
def share(part, whole):
    ### BEGIN SOLUTION
    return part / whole
    ### END SOLUTION

# %% check_trained points=4
print("trained")

# %% check_share points=2
print(share(1, 2))
"""
CHECKS = '''\
from autograder.judging.checks.check import points
from worldsize import bench
from worldsize.bench import TrainingSpec, Task
from worldsize.check import CheckFailed

TASK = Task(num_steps=2, batch_size=16, width=4)


def share_on_rank(student, part, whole):
    return student.share(part, whole)


@points(4, cell="check_trained")
def check_weights(student, rng):
    """Two ranks end in the weights of one process."""
    trial = bench.attempt(student.program("train.py"), TrainingSpec(TASK, 2), int(rng.initial_seed()) % 1000)
    if trial.record.weights is None:
        raise CheckFailed("weights", "none", "call hand_in")
    error = bench.weights_error(trial, TASK)
    if not error < 1e-3:
        raise CheckFailed("the weights of one process", f"they are off by {error:.2g}", "average the gradients")


@points(2, cell="check_share")
def check_share_is_a_fraction(student, rng):
    """A part of a whole is a fraction."""
    (value,) = student.run(share_on_rank, 1, 4, world_size=1)
    if value != 0.25:
        raise CheckFailed("0.25", str(value), "divide")
'''
# what replaces the call of main at the end of the program
SILENT = "pass"
RAISES = 'raise RuntimeError("no luck today")'
ENDLESS = "while True:\n        pass"


def make_course(root: Path, config: str = "") -> Path:
    """A course that holds only this project, released; returns the root."""
    folder = root / "solutions" / NAME
    folder.mkdir(parents=True)
    (folder / "report.py").write_text(REPORT)
    (folder / "checks.py").write_text(CHECKS)
    shutil.copy(ROOT / "solutions" / "project1" / PROGRAM, folder)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(f"\nc.Grade.call_s = 60\n{config}")
    build(root)
    return root


def program(root: Path, ending: str = "main()") -> str:
    """The right program, but for what it does when it is started."""
    text = programs.solved(root / "solutions" / NAME / PROGRAM)
    head, mark, _ = text.rpartition('if __name__ == "__main__":\n')
    assert mark
    return f"{head}{mark}    {ending}\n"


def apart(root: Path) -> str:
    """A program whose ranks exchange nothing: each trains on its own samples."""
    return program(root, "Replica.__init__ = apart(Replica.__init__)\n    main()").replace(
        'if __name__ == "__main__":',
        "def apart(init):\n    def lonely(self, flags):\n        flags.no_sync = True\n        init(self, flags)\n\n"
        '    return lonely\n\n\nif __name__ == "__main__":',
    )


def hand_in(folder: Path, source: str | None, root: Path) -> None:
    """Put a report, and a program if there is one, into a student's folder."""
    folder.mkdir(parents=True)
    release = nbformat.read(root / "labs" / NAME / "report.ipynb", as_version=4)
    notebook = deepcopy(release)
    for cell in notebook.cells:
        if cell.metadata.nbgrader.grade_id == "share":
            cell.source = "def share(part, whole):\n    return part / whole"
    (folder / "report.ipynb").write_text(nbformat.writes(notebook))
    if source is not None:
        (folder / PROGRAM).write_text(source)
