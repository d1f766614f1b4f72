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

# %% [markdown]
# ## 1. The question
#
# > How much is twice two?
#
# Afterwards you can double.

# %% parameters tags=["parameters"]
# what two and
# two are
predicted_twice = None
predicted_half = None  # half of nine

# %% setup
from IPython.display import HTML

from worldsize import check, draw, ledger, quiz
from worldsize.explore import explore

predictions = ledger.Predictions("week01")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks.

# %% predict
predictions.ask("twice two", predicted_twice, "steps", section=3, choices=(3, 4))
predictions.ask("half of nine", predicted_half)

# %% [markdown]
# ## 3. Tables

# %% drawn
draw.table([("ring", 12), ("tree", 30)], title="Steps, computed", columns=("algorithm", "steps"))

# %% long
draw.table([(rank, 2 * rank) for rank in range(60)], title="Ranks, computed", columns=("rank", "steps"))

# %% endless
HTML(f"<table><tbody><tr><td>{'a line<br>' * 60}</td></tr></tbody></table>")

# %% [markdown]
# ### Your turn: twice
#
# 2 minutes · easy
#
# Double a number.

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

# %% [markdown]
# ### Find the bug: half
#
# 8 minutes · medium
#
# A colleague halves a number. Run the check, and repair the function.
#
# <details><summary>Hint</summary>
#
# Half of it is less than all of it.
# </details>

# %% half tags=["turn"]
def half(number):
    """Half the number."""
    ### BEGIN SOLUTION
    return number / 2
    ### INSTEAD
    # return number * 2
    ### END SOLUTION

# %% check_half
with check.turn("half"):
    check.expect_close(half(2), 1, "half of 2", "Divide it.")

# %% [markdown]
# ## 4. Explorer

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
