"""An untouched lesson runs through: its turns are to be written, its bugs are found, and so each check can fail."""

import pytest
from executed import errors, stream, unsolved_outputs, week_outputs
from repository import ROOT

from autograder.authoring.scripts import is_buggy, read_week

pytestmark = pytest.mark.lesson
TURNS = {
    path: turns
    for path in sorted((ROOT / "weeks").glob("*.py"))
    if (turns := [cell for cell in read_week(path).cells if cell.is_turn])
}


@pytest.mark.parametrize("week", TURNS, ids=lambda path: path.stem[:6])
def test_the_checks_of_an_untouched_week_fail_in_words(week, tmp_path):
    outputs = unsolved_outputs(week, tmp_path)
    for turn in TURNS[week]:
        said = outputs[turn.check]
        assert not errors(said)
        if is_buggy(turn.source):
            texts = [output.get("data", {}).get("text/plain", "") for output in said]
            assert any(text.startswith("Not yet:") for text in texts), f"{turn.check} passes, or says {said}"
        else:
            assert f"{turn.title} is not written yet" in stream(said), f"{turn.check} says {said}"


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


def test_a_solved_week_passes_its_own_checks(week, tmp_path):
    outputs = week_outputs(week, tmp_path, "steps = 4")
    assert stream(outputs["check_mean"]) == stream(outputs["check_last"]) == "Right.\n"
