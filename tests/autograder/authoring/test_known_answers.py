import textwrap

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner

from autograder.authoring.known_answers import (
    answer_path,
    compose,
    read_answer,
    read_known_answers,
    solution_cells,
    write_answer,
)
from autograder.authoring.scripts import AuthoringError
from autograder.cli import app
from autograder.course import CONFIG_FILE

WRONG = """\
# score: 4
# hint: mean
# hint: not the sum
# Adds the gradients up
# and stops there.

# %% average
def average(values):
    return sum(values)

# %% why [markdown]
# Because.
"""


LAB = '''\
# %% setup
import math

# %% average tags=["solution"]
def average(values):
    """The mean of some numbers.

    It is their sum over their number, and nan where there are none.
    """
    ### BEGIN SOLUTION
    total = 0
    for value in values:
        total += value
    if not values:
        total = math.nan
    return total / len(values)
    ### END SOLUTION

# %% check_average points=3
assert average([1, 3]) == 2

# %% why [markdown] points=2 tags=["solution"]
# Because.
'''
HUNKED = """\
# score: 4
# Adds the gradients up.

# %% average
@@
         total += value
-    if not values:
-        total = math.nan
-    return total / len(values)
+    return total

# %% why [markdown]
# No idea.
"""


@pytest.fixture
def folder(tmp_path):
    """The folder of a lab's solution, with no known answer yet."""
    folder = tmp_path / "lab01"
    (folder / "wrong").mkdir(parents=True)
    (folder / "right").mkdir()
    (folder / "lab01.py").write_text(LAB)
    return folder


@pytest.fixture
def write(folder):
    def write_file(text, kind="wrong", suffix=".py"):
        (folder / kind / f"sums{suffix}").write_text(text)
        return folder, f"{kind}/sums"

    return write_file


def test_a_wrong_answer_says_what_it_must_get(write):
    answer = read_answer(*write(WRONG))
    assert (answer.name, answer.score, answer.hints) == ("wrong/sums", 4, ["mean", "not the sum"])
    assert answer.about == "Adds the gradients up and stops there."
    assert answer.cells == {"average": "def average(values):\n    return sum(values)", "why": "Because."}


def test_the_mistake_may_be_named_inside_the_first_cell(write):
    answer = read_answer(*write("# score: 0\n# %% average\n# Returns nothing.\ndef average(values): pass\n# later\n"))
    assert answer.about == "Returns nothing."


def test_a_right_answer_needs_no_header(write):
    answer = read_answer(*write("# %% average\naverage = statistics.fmean\n", kind="right"))
    assert (answer.score, answer.hints, answer.about) == (None, [], "")


MALFORMED = {
    "no score": ("# score: 4\n", "", 1, "needs the score"),
    "score in words": ("# score: 4", "# score: four", 1, "cannot be read"),
    "two scores": ("# hint: mean", "# score: 5", 2, "cannot be read"),
    "empty hint": ("# hint: mean", "# hint:", 2, "cannot be read"),
    "misspelt key": ("# hint: mean", "# hints: mean", 2, "`# hints: mean` cannot be read"),
    "no comment": ("# Adds the gradients up\n# and stops there.\n", "", 1, "which mistake"),
    "code before the first cell": ("# and stops there.", "import os", 5, "before the first cell"),
    "untitled cell": ("# %% average", "# %%", 7, "needs the title"),
    "answered twice": ("# %% why [markdown]", "# %% average", 11, "answered twice"),
    "solution marker": ("    return", "    ### BEGIN SOLUTION\n    return", 7, "holds a solution marker"),
}


@pytest.mark.parametrize(("old", "new", "line", "sentence"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_refused_with_its_line(write, old, new, line, sentence):
    assert old in WRONG
    place = write(WRONG.replace(old, new, 1))
    path = answer_path(*place)
    with pytest.raises(AuthoringError) as caught:
        read_answer(*place)
    assert any(p.startswith(f"{path}:{line}: ") and sentence in p for p in caught.value.problems), str(caught.value)


def test_a_right_answer_has_no_score(write):
    with pytest.raises(AuthoringError, match="gets full marks"):
        read_answer(*write(WRONG, kind="right"))


def test_an_answer_without_cells_is_refused(write):
    with pytest.raises(AuthoringError, match="has no cell"):
        read_answer(*write("# score: 0\n# Hands in nothing.\n"))


def test_hunks_change_the_solutions_cell(write):
    place = write(HUNKED, suffix=".diff")
    answer = read_answer(*place)
    assert (answer.score, answer.about) == (4, "Adds the gradients up.")
    solution = solution_cells(answer_path(*place).parents[1] / "lab01.py")["average"]
    removed = "    if not values:\n        total = math.nan\n    return total / len(values)"
    average = solution.replace(removed, "    return total")
    assert average != solution
    assert answer.cells == {"average": average, "why": "No idea."}


def test_hunks_may_fit_the_solution_without_docstrings(write):
    text = """\
    # score: 4
    # Starts at 1.
    # %% average tags=["no_docstrings"]
    @@
     def average(values):
    -    total = 0
    +    total = 1
    """
    answer = read_answer(*write(textwrap.dedent(text), suffix=".diff"))
    assert answer.cells["average"].startswith("def average(values):\n    total = 1\n    for value")


BAD_HUNKS = {
    "solution changed": (
        "         total += value",
        "         total += 1",
        5,
        "hunk 1 matches nowhere, there is no line `total += 1`",
    ),
    "lines apart": (
        "         total += value",
        "     total = 0",
        5,
        "hunk 1 matches nowhere, its lines do not follow each other",
    ),
    "no such cell": ("# %% average", "# %% averag", 4, "The solution has no cell `averag`: it has average, why"),
    "bare line": ("-    if not", "if not", 7, "Cell `average`: a line of a hunk must begin with a space, `-` or `+`."),
    "without separator": ("@@\n", " def average(values):\n@@\n", 5, "a hunk must begin with a line `@@`"),
    "no cell": ("# %%", "#", 1, "has no cell"),
}


@pytest.mark.parametrize(("old", "new", "line", "sentence"), BAD_HUNKS.values(), ids=BAD_HUNKS)
def test_hunks_that_do_not_fit_are_refused_with_their_line(write, old, new, line, sentence):
    assert old in HUNKED
    place = write(HUNKED.replace(old, new), suffix=".diff")
    with pytest.raises(AuthoringError) as caught:
        read_answer(*place)
    assert any(p.startswith(f"{answer_path(*place)}:{line}: ") and sentence in p for p in caught.value.problems), str(
        caught.value
    )


def test_an_answer_that_does_not_exist_is_named(folder):
    with pytest.raises(ValueError, match=r"lab01 has no known answer `wrong/sum`: there is neither wrong/sum\.py nor"):
        read_answer(folder, "wrong/sum")


def test_right_answers_come_before_wrong_ones(folder, write):
    write(HUNKED, suffix=".diff")
    write("# %% average\naverage = statistics.fmean\n", kind="right")
    assert [answer.name for answer in read_known_answers(folder)] == ["right/sums", "wrong/sums"]


def test_an_answer_has_one_file(folder, write):
    write(HUNKED, suffix=".diff")
    write(WRONG)
    with pytest.raises(AuthoringError, match=r"sums.py:1: There is also sums.diff: delete one of them"):
        read_known_answers(folder)


def test_an_edited_copy_of_the_solution_becomes_hunks(folder, write, tmp_path):
    edited = tmp_path / "edited.py"
    removed = "    if not values:\n        total = math.nan\n    return total / len(values)\n"
    lab = LAB.replace(removed, "    return total\n").replace("# Because.", "# No idea.")
    edited.write_text(f"# score: 4\n# Adds the gradients up.\n\n{lab}")
    write(WRONG)
    assert write_answer(folder, "wrong/sums", edited).read_text() == HUNKED
    assert [path.name for path in (folder / "wrong").iterdir()] == ["sums.diff"]


def test_what_would_not_be_shorter_as_hunks_is_written_whole(folder, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(WRONG)
    path = write_answer(folder, "wrong/sums", script)
    assert path.name == "sums.py" and "@@" not in path.read_text()
    assert read_answer(folder, "wrong/sums").cells == {"average": "def average(values):\n    return sum(values)"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LAB, "Every cell of this script equals the solution's"),
        (WRONG.replace("# score: 4", "# score: four"), "cannot be read"),
        (WRONG.replace("# %% average", "# %% averag"), "The solution has no cell `averag`: it has average, why"),
    ],
)
def test_an_answer_that_could_not_be_read_is_not_written(folder, tmp_path, text, sentence):
    script = tmp_path / "edited.py"
    script.write_text(text)
    with pytest.raises(AuthoringError, match=sentence):
        write_answer(folder, "wrong/sums", script)
    assert list((folder / "wrong").iterdir()) == []


def test_solution_cells_have_no_marker_lines(tmp_path):
    path = tmp_path / "lab01.py"
    path.write_text(
        '# %% setup\nimport math\n# %% average tags=["solution"]\ndef average(values):\n'
        "    ### BEGIN SOLUTION\n    return math.fsum(values)\n    ### END SOLUTION\n"
    )
    assert solution_cells(path) == {"average": "def average(values):\n    return math.fsum(values)"}


@pytest.fixture
def lab():
    def cell(kind, name, solution):
        metadata = {"nbgrader": {"grade_id": name, "solution": solution}}
        return kind("the stub", id=name, metadata=metadata)

    cells = [cell(new_code_cell, "average", True), cell(new_markdown_cell, "why", True)]
    return new_notebook(cells=[new_markdown_cell("Free."), cell(new_code_cell, "setup", False), *cells])


def test_composing_fills_the_student_cells_of_a_copy(lab):
    before = nbformat.writes(lab)
    filled = compose(lab, {"average": "average = sum"})
    assert [cell.source for cell in filled.cells] == ["Free.", "the stub", "average = sum", "the stub"]
    assert nbformat.writes(lab) == before


@pytest.mark.parametrize("name", ["setup", "averag"])
def test_composing_refuses_a_cell_that_is_not_the_students(lab, name):
    with pytest.raises(ValueError, match=f"no student cell called {name}: it has average, why"):
        compose(lab, {name: "x = 1"})


def test_the_command_writes_an_answer_and_shows_it_whole(folder, tmp_path, monkeypatch):
    (tmp_path / "course" / "solutions").mkdir(parents=True)
    (tmp_path / "course" / CONFIG_FILE).touch()
    folder.rename(tmp_path / "course" / "solutions" / "lab01")
    (tmp_path / "edited.py").write_text(f"# score: 4\n# Sums.\n{LAB.replace('total / len(values)', 'total')}")
    monkeypatch.chdir(tmp_path / "course")
    arguments = ["answer", "lab01", "wrong/sums"]
    written = CliRunner().invoke(app, [*arguments, "--from", str(tmp_path / "edited.py")])
    assert written.exit_code == 0 and "lab01/wrong/sums.diff" in written.output, written.output
    shown = CliRunner().invoke(app, arguments)
    assert "# %% average\ndef average(values):\n" in shown.output and "    return total\n" in shown.output
