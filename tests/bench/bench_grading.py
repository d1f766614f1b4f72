"""How fast a class is graded, against stock nbgrader whose notebooks hold the same checks and run them themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from figures import Figure, scaled
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from repository import ROOT

from autograder.authoring.known_answers import compose, solution_cells
from autograder.submissions.cell_facts import facts

LAB = "lab01"
NUM_STUDENTS, NUM_WARM, NUM_SPAWNED = 24, 6, 2  # stock nbgrader takes one after the other, so a few stand for all
BIN = Path(sys.executable).parent
ENV = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}  # nbgrader looks for alembic there
CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "stock"
c.Execute.timeout = 1800
"""
# in a notebook's first grade cell: the hidden checks, and a student whose functions are those of the notebook
SETUP = """
import sys, types
import cloudpickle, torch
sys.path[:0] = {paths!r}
import {launcher} as launcher
checks = types.ModuleType("hidden_checks")
sys.modules["hidden_checks"] = checks
checks.__file__ = {path!r}  # the checks find the solution beside it
exec(compile(open(checks.__file__).read(), checks.__file__, "exec"), checks.__dict__)
for module in (checks, launcher):
    cloudpickle.register_pickle_by_value(module)

class Student:
    def run(self, on_rank, *args, world_size, each=None, **_):
        functions = [one for one in globals().values() if isinstance(one, types.FunctionType)]
        mine = [one for one in functions if one.__module__ == "__main__"]
        return launcher.launch(world_size, mine, on_rank, args, each or [()] * world_size)

    def emulated(self, on_rank, *args, world_size, each=None, **_):
        self.run(on_rank, *args, world_size=world_size, each=each)
        raise Launched

class Launched(Exception):  # of a check's first emulated run: no conductor is here whose record it could go on with
    pass

def run_checks(cell):
    for name, check in vars(checks).items():
        if name.startswith("check_") and check.check.cell == cell:
            try:
                check(Student(), torch.Generator().manual_seed(1))
            except Launched:
                pass
"""
# what ranks run; the functions of one notebook share their globals
CALL = """
class Cells:
    pass

def call(mine, on_rank, *args):
    student = Cells()
    student.__dict__ = mine[0].__globals__
    student.__dict__.update((one.__name__, one) for one in mine)
    return on_rank(student, *args)
"""
# the ranks of our own library, forked from a warm process
WARM = """
import worldsize as ws
{call}
def launch(world_size, mine, on_rank, args, each):
    return ws.run(call, mine, on_rank, *args, world_size=world_size, each=each, backend="gloo", echo=False).values
"""
# the ranks of an instructor who has torch alone
SPAWNED = """
import os
if __name__ != "__main__" and os.getppid() and os.environ.get("IS_RANK"):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nbgrader takes points for a word on stderr
import pathlib, tempfile
import cloudpickle, torch
import torch.distributed as dist
import torch.multiprocessing as mp
{call}
def on_rank_of(rank, world_size, folder):
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=world_size)
    value = cloudpickle.loads(pathlib.Path(folder, f"call{{rank}}").read_bytes())()
    torch.save(value, pathlib.Path(folder, f"value{{rank}}"))
    dist.barrier()
    dist.destroy_process_group()

def launch(world_size, mine, on_rank, args, each):
    os.environ["IS_RANK"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        for rank, own in enumerate(each):
            payload = cloudpickle.dumps(lambda: call(mine, on_rank, *args, *own))
            pathlib.Path(folder, f"call{{rank}}").write_bytes(payload)
        mp.spawn(on_rank_of, (world_size, folder), nprocs=world_size)
        return [torch.load(pathlib.Path(folder, f"value{{rank}}")) for rank in range(world_size)]
"""


def throughput(scale: float) -> Iterator[Figure]:
    """How long a class of 24 takes by `autograder grade`, and a part of it by stock nbgrader, in one run."""
    num_students, num_warm, num_spawned = (scaled(num, scale) for num in (NUM_STUDENTS, NUM_WARM, NUM_SPAWNED))
    num_cells = scaled(len(_checked(_solution())), scale)
    with tempfile.TemporaryDirectory(prefix="worldsize-") as folder:
        course = _our_course(Path(folder, "ours"), num_students)
        ours_s = _graded_s(course, [BIN / "autograder", "grade", LAB], num_students)
        warm_s = _stock_s(Path(folder, "warm"), WARM, num_warm, num_cells)
        spawned_s = _stock_s(Path(folder, "spawned"), SPAWNED, num_spawned, num_cells)
    how = f"{num_students} submissions of {LAB}, {os.cpu_count()} cores, sandbox on"
    yield Figure("grading: a submission by autograder grade", ours_s, "s", "", None, how)
    how = "the same checks in the notebook, to their first emulated run, ranks by spawn, no sandbox; mean of {}"
    yield Figure("a submission by stock nbgrader", spawned_s, "s", "", None, how.format(num_spawned))
    ratio = spawned_s / ours_s
    yield Figure("stock over ours", ratio, "times", "at least 20", ratio >= 20, "same run, by submission")
    how = "as before, but ranks from this library's warm process; mean of {}"
    yield Figure("a submission by stock nbgrader on our ranks", warm_s, "s", "", None, how.format(num_warm))
    yield Figure("stock on our ranks over ours", warm_s / ours_s, "times", "", None, "same run, by submission")


def _our_course(root: Path, num_students: int) -> Path:
    for name in ("labs", "solutions"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    _nbgrader(root, "generate_assignment", LAB, "--force")
    _hand_in(root, root / "labs", num_students)
    return root


def _stock_s(root: Path, launcher: str, num_students: int, num_cells: int) -> float:
    """Seconds for a submission in a course of nbgrader's own layout, whose grade cells run the hidden checks."""
    source = root / "source" / LAB
    source.mkdir(parents=True)
    nbformat.write(_with_checks(_solution(), root, num_cells), source / f"{LAB}.ipynb")
    (root / "launcher_of_checks.py").write_text(launcher.format(call=CALL))
    (root / "nbgrader_config.py").write_text(CONFIG)
    _nbgrader(root, "generate_assignment", LAB, "--force")
    _hand_in(root, root / "release", num_students)
    return _graded_s(root, [BIN / "nbgrader", "autograde", LAB], num_students)


def _solution() -> NotebookNode:
    return nbformat.read(ROOT / "solutions" / LAB / f"{LAB}.ipynb", as_version=4)


def _checked(notebook: NotebookNode) -> list[NotebookNode]:
    """What nbgrader knows of the cells that checks grade; people grade the others."""
    known = [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]
    return [marks for marks in known if marks.grade and not marks.solution]


def _with_checks(notebook: NotebookNode, root: Path, num_cells: int) -> NotebookNode:
    """The notebook with hidden checks in this many cells for open checks, and without what only shows something."""
    path = str(ROOT / "solutions" / LAB / "checks.py")
    setup = SETUP.format(paths=[str(root), str(ROOT)], launcher="launcher_of_checks", path=path)
    left = num_cells
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code" or marks.get("solution"):
            continue
        if marks.get("grade"):
            cell.source = f"{setup}\nrun_checks({marks.grade_id!r})\n" if left else "pass"
            setup, left = "", max(0, left - 1)
        else:
            cell.source = next(facts([cell.source])).definitions
    return notebook


def _hand_in(root: Path, released: Path, num_students: int) -> None:
    release = nbformat.read(released / LAB / f"{LAB}.ipynb", as_version=4)
    answer = compose(release, solution_cells(ROOT / "solutions" / LAB / f"{LAB}.py"))
    for number in range(num_students):
        folder = root / "submitted" / f"student{number:02}" / LAB
        folder.mkdir(parents=True)
        (folder / f"{LAB}.ipynb").write_text(json.dumps(answer))


def _graded_s(root: Path, command: list[Path | str], num_students: int) -> float:
    """Seconds for a submission, once all are graded and have full marks."""
    start_s = time.monotonic()
    done = subprocess.run([*map(str, command)], cwd=root, capture_output=True, text=True, env=ENV, timeout=3000)
    took_s = time.monotonic() - start_s
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        scores = [one.score for one in gradebook.assignment_submissions(LAB)]
    assert scores == [sum(marks.points for marks in _checked(_solution()))] * num_students, (
        f"{command[0]} gave {scores}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return took_s / num_students


def _nbgrader(root: Path, *words: str) -> None:
    done = subprocess.run(
        [str(BIN / "nbgrader"), *words], cwd=root, capture_output=True, text=True, env=ENV, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
