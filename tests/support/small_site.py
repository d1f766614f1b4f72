"""The site of a small course: a lesson with one cell of each kind, all labs and all pages of docs/."""

import subprocess
import sys
from pathlib import Path

from repository import ROOT

from autograder.authoring.notebooks import notebook, render
from autograder.authoring.scripts import read_week

REPOSITORY = "https://forge.example/course"
LESSON = '''\
# %% [markdown]
# # Week 1. A small lesson
#
# | | |
# |---|---|
# | Reading and doing | about 2 minutes: a turn |
# | Afterwards | lab 1, *average the gradients* |
#
# A formula, $a^2 + b^2$, and a link to [the lab](../labs/lab01/lab01.ipynb#average_gradients).

# %% setup
from worldsize import check, draw, quiz
from worldsize.explore import explore

# %% drawn
draw.table([("ring", 12), ("tree", 30)], title="Steps, computed", columns=("algorithm", "steps"))

# %% twice tags=["turn"]
def twice(number):
    """Twice the number."""
    ### BEGIN SOLUTION
    return number + number
    ### END SOLUTION

# %% check_twice
with check.turn("twice"):
    check.expect_close(twice(2), 4, "twice 2", "Add it to itself.")
    print(f"Right: {twice(2)}.")

# %% bars
def bars(weights=3):
    return draw.memory({"each": {"weights": weights * 1e9}}, 80e9, f"{weights} billion", "one GPU")

explore(bars, weights=(1, 5))

# %% ask
quiz.ask("week01")
'''


def build_small_site(course: Path, out: Path) -> Path:
    """The folder of its pages, after making the course in an empty folder and building its site."""
    docs = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.*")]
    linked = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "labs", "quizzes", *docs]
    for name in [*linked, *(f"worldsize/{module}.py" for module in ("__init__", "units", "check"))]:
        (course / name).parent.mkdir(exist_ok=True)
        (course / name).symlink_to(ROOT / name)
    script = course / "weeks/week01_small.py"
    script.parent.mkdir()
    script.write_text(LESSON)
    script.with_suffix(".ipynb").write_text(render(notebook(read_week(script), graded=False)))
    command = [sys.executable, ROOT / "website", "--course", course, "--out", out, "--repository", REPOSITORY]
    built = subprocess.run(command, capture_output=True, text=True, cwd=course, timeout=280)
    assert built.returncode == 0, built.stderr
    return out / "html"
