"""A lab of two functions and four hidden checks, small enough to be judged in seconds."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from needs import give_up, is_required
from repository import ROOT

from autograder.authoring.notebooks import build
from autograder.judging.report import Outcome, Report
from autograder.judging.request import JudgeRequest, judge
from autograder.sandbox import obstacle, probe

NAME = "sums"
LAB = '''\
# %% [markdown]
# # Sums over ranks

# %% setup
import torch
import torch.distributed as dist

SCALE = 1

# %% total tags=["solution"]
def total(tensor):
    """The sum of `tensor` over all ranks."""
    ### BEGIN SOLUTION
    dist.all_reduce(tensor)
    return SCALE * tensor
    ### END SOLUTION

# %% check_total points=3
assert total(torch.ones(1)).item() == 1

# %% mean tags=["solution"]
def mean(tensor):
    """The mean of `tensor` over all ranks."""
    ### BEGIN SOLUTION
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
    ### END SOLUTION

# %% check_mean points=2
assert mean(torch.ones(1)).item() == 1
'''
CHECKS = '''\
import torch

from autograder.judging.checks.check import points
from worldsize.check import expect_close


def total_on_rank(student, shard):
    return student.total(shard)


def mean_on_rank(student, shard):
    return student.mean(shard)


def draw(rng, world_size):
    return [(torch.randn(3, generator=rng),) for _ in range(world_size)]


@points(2, cell="check_total")
def check_total_sums(student, rng):
    """Every rank holds the sum over all ranks."""
    shards = draw(rng, 2)
    for rank, value in enumerate(student.run(total_on_rank, world_size=2, each=shards)):
        expect_close(value, shards[0][0] + shards[1][0], f"the total on rank {rank}", "Sum over all ranks.")


@points(1, cell="check_total", needs=["check_total_sums"])
def check_total_of_one(student, rng):
    """A rank alone gets its own values back."""
    ((shard,),) = draw(rng, 1)
    (value,) = student.run(total_on_rank, shard, world_size=1)
    expect_close(value, shard, "the total")


@points(2, cell="check_mean")
def check_mean_divides(student, rng):
    """Every rank holds the mean over all ranks."""
    shards = draw(rng, 2)
    for rank, value in enumerate(student.run(mean_on_rank, world_size=2, each=shards)):
        expect_close(value, (shards[0][0] + shards[1][0]) / 2, f"the mean on rank {rank}", "Divide by world_size.")
'''
GIVEN = "import torch\nimport torch.distributed as dist\nSCALE = 1"
TOTAL = """\
def total(tensor):
    dist.all_reduce(tensor)
    return SCALE * tensor
"""
MEAN = """\
def mean(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
"""

needs_jail = pytest.mark.skipif(
    not probe().is_trusted and not is_required("sandbox"),
    reason=f"this machine gives no sandbox: {obstacle()}",
)


def need_root(reason: str) -> None:
    """Skip the test unless root runs it, or fail it where WORLDSIZE_REQUIRE names the sandbox."""
    if os.geteuid() != 0:
        give_up("sandbox", reason)


def write_checks(folder: Path, text: str = CHECKS) -> Path:
    """The path of a file of hidden checks, in a folder that only this user may read, as a course is."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "checks.py"
    path.write_text(text)
    return path


def judged(checks: Path, *, total: str = TOTAL, mean: str = MEAN, seed: int | None = None, **limits: float) -> Report:
    """The report on these two functions."""
    cells = [("setup", GIVEN), ("total", total), ("mean", mean)]
    return judge(JudgeRequest(checks=checks, cells=cells, seed=seed, **limits))


def outcomes(report: Report) -> dict[str, Outcome]:
    """How each check ended."""
    return {check.name: check.outcome for check in report.checks}


def message(report: Report, check: str) -> str:
    """What the student reads about a check."""
    (text,) = (one.message for one in report.checks if one.name == check)
    return text


def make_course(root: Path, lab: str = LAB, checks: str = CHECKS) -> Path:
    """A course that holds only this lab, with its release built; returns the root."""
    folder = root / "solutions" / NAME
    folder.mkdir(parents=True)
    (folder / f"{NAME}.py").write_text(lab)
    (folder / "checks.py").write_text(checks)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    build(root)
    return root


def release(root: Path) -> NotebookNode:
    """The students' notebook of the course."""
    return nbformat.read(root / "labs" / NAME / f"{NAME}.ipynb", as_version=4)


def answered(notebook: NotebookNode, cells: Mapping[str, str]) -> NotebookNode:
    """The notebook with these sources in the cells of these grade ids."""
    for cell in notebook.cells:
        cell.source = cells.get(cell.metadata.nbgrader.grade_id, cell.source)
    return notebook


def once(base: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills at its first use. Tests that share one belong to one `xdist_group`."""
    folder = base / name
    if not folder.exists():
        made = base / f"{name}.made"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        make(made)
        made.rename(folder)
    return folder


def without_jails(program: str) -> subprocess.CompletedProcess[str]:
    """What a Python program gives where the right to make namespaces is taken away, user namespaces included."""
    need_root("only root can take rights away")

    def drop() -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN

    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, preexec_fn=drop, cwd=ROOT)
