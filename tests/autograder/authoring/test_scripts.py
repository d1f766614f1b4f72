import pytest

from autograder.authoring.scripts import AuthoringError, parse, read_lab, read_week, split_solution, without_markers

LAB = '''\
# %% [markdown]
# Average the gradients.

# %% setup
import math

# %% mean tags=["solution"]
def mean(values):
    """The mean."""
    ### BEGIN SOLUTION
    return math.fsum(values) / len(values)
    ### END SOLUTION

# %% check_mean points=3
assert mean([1, 3]) == 2

# %% why [markdown] points=2 tags=["solution"]
# Because.
'''
CHECKS = '''\
from autograder.judging.checks.check import points

@points(2, cell="check_mean")
def check_value(student, rng):
    """The mean of three values."""

@points(1, cell="check_mean", needs=["check_value"])
def check_empty(student, rng):
    """No value at all."""
'''


@pytest.fixture
def write(tmp_path):
    def write_lab(script=LAB, checks=CHECKS):
        (tmp_path / "lab01.py").write_text(script)
        (tmp_path / "checks.py").write_text(checks)
        return tmp_path / "lab01.py"

    return write_lab


def problems_of(read, path):
    with pytest.raises(AuthoringError) as caught:
        read(path)
    return caught.value.problems


def test_a_lab_is_read_cell_by_cell(write):
    cells = read_lab(write()).cells
    assert [(cell.line, cell.kind, cell.id) for cell in cells] == [
        (1, "markdown", "top-markdown-1"),
        (4, "code", "setup"),
        (7, "code", "mean"),
        (14, "code", "check_mean"),
        (17, "markdown", "why"),
    ]
    assert [cell.is_solution for cell in cells] == [False, False, True, False, True]
    assert [cell.is_check for cell in cells] == [False, False, False, True, False]
    assert [cell.points for cell in cells] == [None, None, None, 3, 2]
    assert cells[0].source == "Average the gradients."
    assert cells[3].source == "assert mean([1, 3]) == 2"


MALFORMED = {
    "duplicate id": ("# %% check_mean", "# %% setup", 14, "The id `setup` is taken by the cell on line 4"),
    "points on a solution": (
        'mean tags=["solution"]',
        'mean points=3 tags=["solution"]',
        7,
        "cannot have points",
    ),
    "unclosed solution": ("    ### END SOLUTION\n", "", 10, "has no `END SOLUTION`"),
    "unopened solution": ("    ### BEGIN SOLUTION\n", "", 11, "was never begun"),
    "nested solution": (
        "    return math",
        "    ### BEGIN SOLUTION\n    return math",
        11,
        "stands inside the solution that begins on line 10",
    ),
    "marker outside": ("import math", "import math\n### BEGIN SOLUTION", 6, "stands outside a solution cell"),
    "no solution region": (
        "    ### BEGIN SOLUTION\n    return math.fsum(values) / len(values)\n    ### END SOLUTION\n",
        "",
        7,
        "has no `### BEGIN SOLUTION`",
    ),
    "missing check": ("check_mean", "check_average", 7, "add `# %% check_mean points=N`"),
    "check without points": (" points=3", "", 14, "The check cell `check_mean` has no points"),
    "zero points": ("points=3", "points=0", 14, "points=0 is not a number above 0"),
    "negative points": ("points=3", "points=-1", 14, "points=-1 is not a number above 0"),
    "points in words": ("points=3", 'points="3"', 14, "points='3' is not a number above 0"),
    "points not a number": ("points=3", "points=NaN", 14, "points=nan is not a number above 0"),
    "points unreadable": ("points=3", "points=three", 14, "`points=three` cannot be read"),
    "unknown option": ("points=3", "points=3 point=3", 14, "The option `point` cannot be read"),
    "tags not a list": (
        'tags=["solution"]\ndef',
        'tags="solution"\ndef',
        7,
        "'solution' is not of type 'array'",
    ),
    "untitled code": ("# %% setup", "# %%", 4, "A code cell of a lab needs a title"),
    "invalid title": ("# %% setup", "# %% set up", 4, "The title `set up` is not a valid id"),
    "too long a title": ("# %% setup", "# %% " + "s" * 65, 4, "is not a valid id"),
    "raw cell": ("# %% [markdown]", "# %% [raw]", 1, "not raw"),
    "syntax error": ("import math", "import math\nx = (", 6, "This code has a syntax error"),
    "return at the top": ("import math", "import math\nreturn 1", 6, "'return' outside function"),
    "syntax error in what is given": (
        "    ### BEGIN SOLUTION\n",
        "    if values:\n    ### BEGIN SOLUTION\n        pass\n",
        11,
        "This code has a syntax error",
    ),
    "words without points": (
        ' points=2 tags=["solution"]',
        ' tags=["solution"]',
        17,
        "answered in words needs both",
    ),
    "hidden tests": (
        "assert mean",
        "### BEGIN HIDDEN TESTS\nassert mean",
        15,
        "hidden checks belong in checks.py",
    ),
    "code before the first cell": (
        "# %% [markdown]",
        "import os\n# %% [markdown]",
        1,
        "before the first cell",
    ),
}


@pytest.mark.parametrize(("old", "new", "line", "sentence"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_lab_is_refused_with_its_line(write, old, new, line, sentence):
    assert old in LAB
    path = write(LAB.replace(old, new, 1))
    assert any(
        problem.startswith(f"{path}:{line}: ") and sentence in problem for problem in problems_of(read_lab, path)
    ), problems_of(read_lab, path)


def test_every_problem_is_reported_in_order_of_line(write):
    path = write(LAB.replace("# %% setup", "# %%").replace("== 2", "=="))
    assert [problem.split(": ")[0] for problem in problems_of(read_lab, path)] == [f"{path}:4", f"{path}:15"]


def test_an_empty_script_is_refused(write):
    assert "has no cell" in problems_of(read_lab, write("", ""))[0]


DISAGREEING = {
    "too few points": ("@points(2", "@points(1", "lab01.py:14: `check_mean` has points=3, but its checks"),
    "unknown cell": (
        '@points(1, cell="check_mean"',
        '@points(1, cell="check_mode"',
        "checks.py:7: There is no cell",
    ),
    "points not written out": ("@points(2", "@points(TWO", "checks.py:3: Write this as"),
    "cell not written out": ('cell="check_mean")', "cell=MEAN)", "checks.py:3: Write this as"),
    "syntax error": ("def check_value(", "def check_value", "checks.py:4: This code has a syntax error"),
}


@pytest.mark.parametrize(("old", "new", "sentence"), DISAGREEING.values(), ids=DISAGREEING)
def test_points_agree_with_the_hidden_checks(write, old, new, sentence):
    assert old in CHECKS
    problems = problems_of(read_lab, write(checks=CHECKS.replace(old, new, 1)))
    assert any(sentence in problem for problem in problems), problems


def test_points_need_hidden_checks(write):
    path = write()
    path.with_name("checks.py").unlink()
    assert problems_of(read_lab, path) == [
        f"{path}:14: This cell has points, but there is no checks.py next to the script to award them."
    ]


def test_a_lesson_needs_no_titles_and_may_use_magics(tmp_path):
    path = tmp_path / "week01_why.py"
    path.write_text(
        "# %% Two real ranks!\n# %%torchrun --nproc-per-node 2\nfrom __future__ import annotations\n\n"
        "# %%\n# copy this comment\n%matplotlib inline\nawait later()\n\n"
        '# %%\ntext = """\n# %% no cell\n"""\n\n'
        "# %% [markdown]\n# ```\n# %% no cell\n# ```\n\n# %% [markdown]\n# The end.\n"
    )
    cells = read_week(path).cells
    assert [cell.id for cell in cells] == [
        "Two-real-ranks",
        "Two-real-ranks-code-1",
        "Two-real-ranks-code-2",
        "Two-real-ranks-markdown-3",
        "Two-real-ranks-markdown-4",
    ]
    assert cells[0].source.startswith("%%torchrun --nproc-per-node 2\n")
    assert cells[1].source.startswith("# copy this comment\n%matplotlib inline")
    assert cells[2].source == 'text = """\n# %% no cell\n"""'


def test_a_syntax_error_below_a_cell_magic_keeps_its_line(tmp_path):
    path = tmp_path / "week01_why.py"
    path.write_text("# %% ranks\n# %%torchrun --nproc-per-node 2\nx = 1\ny = (\n")
    assert problems_of(read_week, path)[0].startswith(f"{path}:4: ")


@pytest.mark.parametrize("line", ["# %% mean points=3", '# %% mean tags=["solution"]', "# %% !!"])
def test_a_lesson_is_not_graded(tmp_path, line):
    path = tmp_path / "week01_why.py"
    path.write_text(f"{line}\nx = 1\n")
    assert problems_of(read_week, path)[0].startswith(f"{path}:1: ")


def test_a_new_paragraph_renames_no_cell_of_another_section(tmp_path):
    def ids(text):
        path = tmp_path / "week01_why.py"
        path.write_text(text)
        return [cell.id for cell in parse(path).cells]

    before = ids("# %% [markdown]\n# a\n# %% one\n1\n# %% [markdown]\n# b\n# %% two\n2\n# %% [markdown]\n# c\n")
    after = ids(
        "# %% [markdown]\n# a\n# %% one\n1\n# %% [markdown]\n# new\n# %% [markdown]\n# b\n"
        "# %% two\n2\n# %% [markdown]\n# c\n"
    )
    assert [name for name in after if name not in before] == ["one-markdown-2"]


def test_a_solution_is_split_from_what_is_given():
    source = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n# given"
    assert split_solution(source) == (["def f():", "# given"], ["    return 1"])
    assert without_markers(source) == "def f():\n    return 1\n# given"
