"""A lesson's turns and bugs: what readers are given, what is folded below the check, and what is refused."""

import nbformat
import pytest

from autograder.authoring.notebooks import notebook, render
from autograder.authoring.scripts import AuthoringError, read_lab, read_week

TURN = '''\
# %% mean tags=["turn"]
def mean(values):
    """The mean."""
    if values:
        ### BEGIN SOLUTION
        total = sum(values)
        return total / len(values)
        ### END SOLUTION
    return 0
'''
BUG = '''\
# %% mean tags=["turn"]
def mean(values):
    """The mean."""
    ### BEGIN SOLUTION
    total = sum(values)

    return total / len(values)
    ### INSTEAD
    # total = 0
    # for value in values:  # one by one
    #     total += value
    #
    # return total
    ### END SOLUTION
'''
CHECK = """
# %% check_mean
with check.turn("mean"):
    check.expect_close(mean([1, 3]), 2, "the mean")
    print("Right.")

# %% [markdown]
# On we go.
"""


@pytest.fixture
def write(tmp_path):
    def write_week(text):
        path = tmp_path / "week06_why.py"
        path.write_text(text)
        return path

    return write_week


def problems_of(read, path):
    with pytest.raises(AuthoringError) as caught:
        read(path)
    return [problem.rpartition("week06_why.py:")[2] for problem in caught.value.problems]


def test_a_turn_is_to_be_written_and_its_answer_is_folded_below_the_check(write):
    node = notebook(read_week(write(TURN + CHECK)), graded=False)
    nbformat.validate(node)
    assert [cell.id for cell in node.cells] == ["mean", "check_mean", "answer-mean", "check_mean-markdown-1"]
    assert node.cells[0].source.splitlines() == [
        "def mean(values):",
        '    """The mean."""',
        "    if values:",
        '        raise NotImplementedError("your turn")',
        "    return 0",
    ]
    assert node.cells[0].metadata == {"tags": ["turn"]}
    answer = node.cells[2].source
    assert answer.startswith("<details><summary>A worked answer</summary>\n\n```python\ndef mean(values):\n")
    assert "return total / len(values)\n    return 0\n```\n\n</details>" in answer and "###" not in answer


def test_a_bug_is_given_instead_of_the_right_lines(write):
    node = notebook(read_week(write(BUG + CHECK)), graded=False)
    assert node.cells[0].source.splitlines()[2:] == [
        "    total = 0",
        "    for value in values:  # one by one",
        "        total += value",
        "",
        "    return total",
    ]
    answer = node.cells[2].source
    assert answer.startswith("<details><summary>The bug, and its fix</summary>")
    assert "return total / len(values)\n```" in answer and "one by one" not in answer


@pytest.mark.parametrize("text", [TURN, BUG])
def test_a_solved_notebook_has_the_right_lines_and_no_folded_answer(write, text):
    node = notebook(read_week(write(text + CHECK)), graded=False, solved=True)
    assert [cell.id for cell in node.cells] == ["mean", "check_mean", "check_mean-markdown-1"]
    namespace = {}
    exec(node.cells[0].source, namespace)
    assert namespace["mean"]([1, 3]) == 2
    assert "###" not in node.cells[0].source and "# total = 0" not in node.cells[0].source


def test_a_build_is_the_same_bytes_every_time(write):
    path = write(TURN + CHECK)
    assert len({render(notebook(read_week(path), graded=False)) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("        ### END SOLUTION\n", "", "5: This `BEGIN SOLUTION` has no `END SOLUTION` in its cell."),
        ('tags=["turn"]', "", "5: `BEGIN SOLUTION` stands outside a solution cell"),
        ("check_mean", "check_means", "1: No cell after this one checks it: add `# %% check_mean`."),
        ('check.turn("mean")', "open(0)", "11: This check stops the lesson where it fails"),
        ("# %% mean tags", "# %% means tags", "1: A turn is called like the function that it defines, and `means`"),
        ("# %% mean tags", "# %% mean [markdown] tags", "1: A turn is a code cell"),
        ("        total = sum(values)\n", "        total = 0\n" * 8, "1: The solution of a turn has 1 to 8 lines"),
        ("    return 0\n", "    ### INSTEAD\n    return 0\n", "9: `### INSTEAD` stands outside the solution"),
        (
            "        total = sum(values)\n        return total / len(values)\n",
            "\n",
            "1: The solution of a turn has 1 to 8",
        ),
        ("return total / len(values)", "return total / len(values", "7: This code has a syntax error"),
        (
            "    return 0\n",
            "    ### BEGIN SOLUTION\n    return 0\n    ### END SOLUTION\n",
            "1: A turn has one `### BEGIN SOLUTION`",
        ),
    ],
)
def test_a_malformed_turn_is_refused_by_line(write, old, new, problem):
    assert TURN.count(old) + CHECK.count(old) > 0
    problems = problems_of(read_week, write((TURN + CHECK).replace(old, new)))
    assert any(one.startswith(problem) for one in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    # return total\n", "    return total\n", "13: What stands below `### INSTEAD` is given to readers"),
        ("    # return total\n", "    # return (total\n", "13: This code has a syntax error"),
        ("    # total = 0\n", "    ### INSTEAD\n", "9: This solution has an `### INSTEAD` on line 8 already."),
    ],
)
def test_a_malformed_bug_is_refused_by_line(write, old, new, problem):
    problems = problems_of(read_week, write((BUG + CHECK).replace(old, new)))
    assert any(one.startswith(problem) for one in problems), problems


def test_lines_instead_of_the_right_ones_do_not_count(write):
    long = BUG.replace("    # total = 0\n", "    # total = 0\n" * 9)
    assert len(read_week(write(long + CHECK)).cells) == 3


def test_a_lab_has_no_turns(write):
    assert any("Only a lesson has cells with tags" in one for one in problems_of(read_lab, write(TURN + CHECK)))
