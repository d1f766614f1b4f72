"""An untouched lesson runs through: its turns are to be written, its bugs are found, and so each check can fail."""

import pytest
from executed import UntouchedWeek, stream, week_outputs
from repository import ROOT

from autograder.authoring.scripts import read_week

pytestmark = pytest.mark.slow


def looks_itself(week):
    """True where the week's own test runs it untouched, which takes as long as the week."""
    test = ROOT / "tests" / "e2e" / f"test_{week.stem[:6]}.py"
    return "untouched." in test.read_text(encoding="utf-8")


def unsolved_outputs(script, folder):
    """The outputs of a week's untouched turns and of the cells that these need, by id."""
    with UntouchedWeek(script, folder) as week:
        return week.outputs


WEEKS = [
    path
    for path in sorted((ROOT / "weeks").glob("*.py"))
    if any(cell.is_turn for cell in read_week(path).cells) and not looks_itself(path)
]


@pytest.mark.parametrize("week", WEEKS, ids=lambda path: path.stem[:6])
def test_the_checks_of_an_untouched_week_fail_in_words(week, tmp_path):
    assert unsolved_outputs(week, tmp_path)


WEEK = '''\
# %% parameters tags=["parameters"]
steps = 3

# %% setup
from worldsize import check

# %% harness
def total(values):
    return sum(values, start=ZERO)

# %% zero
ZERO = 0

# %% slow
1 / (steps - 3)  # fails unless it is left out

# %% mean tags=["turn"]
def mean(values):
    """The mean."""
    ### BEGIN SOLUTION
    return total(values) / len(values)
    ### END SOLUTION

# %% check_mean
with check.turn("mean"):
    check.expect_close(mean([1, 3]), 2, "the mean")
    print("Right.")

# %% last tags=["turn"]
def last(values):
    """The last value."""
    ### BEGIN SOLUTION
    return values[-1]
    ### INSTEAD
    # return values[len(values)]
    ### END SOLUTION

# %% check_last
with check.turn("last"):
    check.expect_close(last([1, 3]), 3, "the last value")
    print("Right.")
'''


@pytest.fixture
def week(tmp_path):
    path = tmp_path / "week99_tiny.py"
    path.write_text(WEEK)
    return path


def test_only_the_cells_that_turns_need_are_run(week, tmp_path):
    outputs = unsolved_outputs(week, tmp_path)
    assert set(outputs) == {"parameters", "setup", "harness", "zero", "mean", "check_mean", "last", "check_last"}
    assert stream(outputs["check_mean"]).startswith("mean is not written yet.")
    text = outputs["check_last"][0]["data"]["text/plain"]
    assert text.splitlines()[:2] == ["Not yet: last", "  IndexError: list index out of range"]
    assert text.splitlines()[2:] == ["  the cell, line 3, in last", "    return values[len(values)]"]


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ('check.expect_close(mean([1, 3]), 2, "the mean")', "pass", "check_mean says"),
        ("# return values[len(values)]", "# return values[1]", "check_last passes"),
    ],
)
def test_a_check_that_asks_for_nothing_is_found(week, tmp_path, line, instead, said):
    week.write_text(WEEK.replace(line, instead))
    with pytest.raises(AssertionError, match=said):
        unsolved_outputs(week, tmp_path)


def test_a_solved_week_passes_its_own_checks(week, tmp_path):
    outputs = week_outputs(week, tmp_path, "steps = 4")
    assert stream(outputs["check_mean"]) == stream(outputs["check_last"]) == "Right.\n"
