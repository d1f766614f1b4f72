"""A small course graded with plain nbgrader commands, for tests of its results: records, exports, feedback."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import nbformat
from commands import run, run_afresh
from nbformat.v4 import new_markdown_cell
from tiny_lab import MEAN, NAME, ROOT, TOTAL, answered, make_course, release

CONFIG = """
c.Grade.call_s = 20
c.Policy.percent_per_day = 10
"""
DUE = "2020-11-20 12:00:00 UTC"
EVIL = """\
# My thoughts <script>alert("from ada")</script>

<img src=x onerror="alert(2)"> and $a<b$, [here](javascript:alert(3)), $\\text{<script>alert(4)</script>}$, $\\frac$
"""


def hand_in(root: Path, student: str, text: str, timestamp: str = "") -> None:
    """Put a submission below `submitted/`, with a timestamp written by the student."""
    folder = root / "submitted" / student / NAME
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").write_text(text)
    if timestamp:
        (folder / "timestamp.txt").write_text(timestamp)


def grade_course(root: Path) -> None:
    """Four students: ada is right, bob late, cy's file is damaged, and on dan's the grader breaks."""
    make_course(root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(CONFIG)
    right = answered(deepcopy(release(root)), {"total": TOTAL, "mean": MEAN})
    evil = deepcopy(right)
    evil.cells.append(new_markdown_cell(EVIL))
    hand_in(root, "ada", nbformat.writes(evil), "garbage \x01")
    hand_in(root, "bob", nbformat.writes(right), "2020-01-01 00:00:00 UTC")
    hand_in(root, "cy", nbformat.writes(right)[:-300], "2099-01-01 00:00:00 UTC")
    (root / "collected.csv").write_text(f"assignment,student,submitted\n{NAME},bob,2020-11-21 18:00:00 UTC\n")
    log = [
        run_afresh(root, "nbgrader", "generate_assignment", NAME, "--force"),
        run_afresh(root, "nbgrader", "db", "assignment", "add", NAME, f"--duedate={DUE}"),
        run(root, "nbgrader", "db", "student", "add", "eve"),
        run_afresh(root, "nbgrader", "autograde", NAME),
    ]
    checks = root / "solutions" / NAME / "checks.py"
    sound = checks.read_text()
    checks.write_text(sound.replace("    shards = draw(rng, 2)", "    1 / 0"))
    shutil.copytree(root / "submitted" / "bob", root / "submitted" / "dan")
    log.append(run(root, "nbgrader", "autograde", NAME, "--student", "dan"))
    checks.write_text(sound)
    log.append(run_afresh(root, "nbgrader", "generate_feedback", NAME))
    log.append(run_afresh(root, "nbgrader", "export"))
    (root / "commands.log").write_text("\n".join(f"{done.args} {done.returncode}\n{done.stdout}" for done in log))
    assert ROOT.exists()
