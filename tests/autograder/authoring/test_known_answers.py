import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.authoring.known_answers import compose, read_answer, solution_cells
from autograder.authoring.scripts import AuthoringError

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


@pytest.fixture
def write(tmp_path):
    def write_answer(text, folder="wrong"):
        path = tmp_path / folder / "sums.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write_answer


def test_a_wrong_answer_says_what_it_must_get(write):
    answer = read_answer(write(WRONG))
    assert (answer.name, answer.score, answer.hints) == ("sums", 4, ["mean", "not the sum"])
    assert answer.about == "Adds the gradients up and stops there."
    assert answer.cells == {"average": "def average(values):\n    return sum(values)", "why": "Because."}


def test_the_mistake_may_be_named_inside_the_first_cell(write):
    answer = read_answer(write("# score: 0\n# %% average\n# Returns nothing.\ndef average(values): pass\n# later\n"))
    assert answer.about == "Returns nothing."


def test_a_right_answer_needs_no_header(write):
    answer = read_answer(write("# %% average\naverage = statistics.fmean\n", folder="right"))
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
    path = write(WRONG.replace(old, new, 1))
    with pytest.raises(AuthoringError) as caught:
        read_answer(path)
    assert any(p.startswith(f"{path}:{line}: ") and sentence in p for p in caught.value.problems), str(caught.value)


def test_a_right_answer_has_no_score(write):
    with pytest.raises(AuthoringError, match="gets full marks"):
        read_answer(write(WRONG, folder="right"))


def test_an_answer_without_cells_is_refused(write):
    with pytest.raises(AuthoringError, match="has no cell"):
        read_answer(write("# score: 0\n# Hands in nothing.\n"))


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
