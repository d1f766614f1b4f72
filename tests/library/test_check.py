import math

import numpy as np
import pytest
import torch

from worldsize import CheckFailed, RunStopped, expect_close, run
from worldsize.check import TODO, FailureBox, turn

NAN, INF = float("nan"), float("inf")


def failure(*args, **kwargs):
    """What the check that must not hold says."""
    with pytest.raises(CheckFailed) as caught:
        expect_close(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.ones(2, 3), torch.ones(2, 3)),
        (torch.tensor([1.00005]), torch.tensor([1.0])),
        (torch.tensor([INF, -INF]), torch.tensor([INF, -INF])),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (torch.tensor([3], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j])),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (torch.ones(3, 2).T, torch.ones(2, 3)),
        (2, 2.0),
        (0.5, 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(0.5, dtype=torch.float64), 0.5),
        (torch.tensor(7), 7),
    ],
)
def test_what_is_close_passes(actual, expected):
    expect_close(actual, expected, "the gradient")


@pytest.mark.parametrize(
    ("actual", "expected", "words"),
    [
        (torch.zeros(1), torch.ones(1), "Expected: the gradient to be 1. Got: 0."),
        (torch.tensor(2.0), 1.0, "Expected: the gradient to be 1. Got: 2."),
        (2.0, 1.0, "Expected: the gradient to be 1. Got: 2."),
        (10**400, 1.0, "Got: inf."),
        (-(10**400), 1.0, "Got: -inf."),
        (torch.tensor([NAN]), torch.tensor([1.0]), "Got: nan."),
        (torch.tensor([NAN]), torch.tensor([NAN]), "Got: nan."),
        (NAN, 1.0, "Got: nan."),
        (torch.tensor([INF]), torch.tensor([1.0]), "Got: inf."),
        (torch.tensor([1.0]), torch.tensor([INF]), "Expected: the gradient to be inf. Got: 1."),
        (torch.tensor([-INF]), torch.tensor([INF]), "Got: -inf."),
        (torch.ones(3), torch.ones(3, 1), "Expected: the gradient of shape (3, 1). Got: shape (3,)."),
        (torch.ones(1), 1.0, "Expected: the gradient of shape (). Got: shape (1,)."),
        (torch.ones(1).double(), torch.ones(1), "of type torch.float32. Got: type torch.float64."),
        (torch.tensor([True]), torch.tensor([1]), "of type torch.int64. Got: type torch.bool."),
        (None, torch.ones(1), "Expected: the gradient to be a tensor. Got: None."),
        (1.0, torch.ones(1), "to be a tensor. Got: 1.0 of type float."),
        (True, 1.0, "to be a number. Got: True of type bool."),
        (np.float32(2), 1.0, "to be 1. Got: 2."),
        (np.bool_(True), 1.0, "to be a number. Got: a bool"),
        ("1", 1.0, "Got: a str."),
        (torch.tensor(1 + 1j), 1.0, "complex64"),
        (torch.tensor([1 + 3j]), torch.tensor([1 + 2j]), "to be 1+2j. Got: 1+3j."),
        (torch.tensor(2), 2.5, "to be 2.5. Got: 2."),
    ],
)
def test_what_is_not_close_is_told(actual, expected, words):
    assert words in failure(actual, expected, "the gradient")


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, int, torch.tensor])
def test_a_number_is_close_whatever_its_kind(kind):
    expect_close(kind(1), 1.0, "the loss")


def test_the_element_that_is_furthest_off_is_named():
    said = failure(torch.tensor([1.0, 2.5, 9.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]), "the sum")
    assert said == "Expected: the sum to be 3 at element 2 (2 of 4 differ). Got: 9."


def test_a_nan_is_further_off_than_any_number():
    assert "element 1 (2 of 2 differ). Got: nan" in failure(torch.tensor([9.0, NAN]), torch.zeros(2), "x")


def test_tolerances_are_relative_and_absolute():
    expect_close(torch.tensor([101.0]), torch.tensor([100.0]), "x", rtol=0.02, atol=0)
    expect_close(torch.tensor([0.5]), torch.tensor([0.0]), "x", rtol=0, atol=0.5)
    failure(torch.tensor([101.0]), torch.tensor([100.0]), "x", rtol=0.005, atol=0)
    failure(torch.tensor([0.6]), torch.tensor([0.0]), "x", rtol=0, atol=0.5)
    failure(16777216, 16777217, "a count that float32 cannot hold", rtol=0, atol=0.5)


def test_what_came_is_quoted_only_in_part():
    assert len(failure(["x" * 5000], torch.ones(1), "the list")) < 200


def test_a_failed_check_is_one_paragraph_with_its_hint():
    error = CheckFailed("the mean", "the sum", "Divide by world_size.")
    assert str(error) == "Expected: the mean. Got: the sum. Divide by world_size."
    assert str(CheckFailed("a", "b")) == "Expected: a. Got: b."
    assert str(CheckFailed("a.", "b.", "use c\n- d")) == "Expected: a. Got: b. Use c\n- d"
    assert str(CheckFailed("a", "b", "`c` changes.")) == "Expected: a. Got: b. `c` changes."


def test_a_notebook_prints_a_failed_check_without_a_stack():
    assert CheckFailed("3", "5", "Divide.")._render_traceback_() == [
        "Check failed.",
        "  expected: 3",
        "  got:      5",
        "  hint:     Divide.",
    ]
    assert len(CheckFailed("3", "5")._render_traceback_()) == 3


def test_a_hint_goes_with_every_kind_of_failure():
    wanted = torch.ones(2)
    wrong = (None, torch.ones(3), torch.ones(2).int(), torch.tensor([1.0, math.pi]))
    assert all(failure(value, wanted, "x", "Look at the sign.").endswith("Look at the sign.") for value in wrong)


def unwritten(*_):
    raise NotImplementedError(TODO)


def test_unwritten_function_is_named_and_the_lesson_goes_on(capsys):
    with turn("average"):
        unwritten()
    assert capsys.readouterr().out.startswith("average is not written yet.")
    with turn("average"):
        try:
            unwritten()
        except NotImplementedError as error:
            raise RuntimeError("the harness says") from error
    assert capsys.readouterr().out.startswith("average is not written yet.")


def test_function_whose_cell_has_not_run_is_not_written_yet(capsys):
    with turn("average"):
        average()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    assert capsys.readouterr().out.startswith("average is not written yet.")


def test_function_that_is_not_written_is_named_when_ranks_call_it(capsys):
    with turn("average"):
        run(unwritten, world_size=2, backend="gloo")
    assert capsys.readouterr().out == (
        "2 ranks on Gloo\n"
        "average is not written yet. Write it in the cell above, run that cell, and then run this one again.\n"
    )


def test_failed_check_is_a_box_that_begins_with_not_yet(capsys):
    with turn("average"):
        expect_close(2.0, 3.0, "the <mean>", "divide by the number of ranks")
    assert capsys.readouterr().out.splitlines() == [
        "Not yet: average",
        "  expected: the <mean> to be 3",
        "  got:      2",
        "  hint:     divide by the number of ranks",
    ]


def test_box_in_html_is_escaped_and_has_no_colours_of_text():
    bundle = FailureBox("average", (("expected", "a <b>"), ("hint", "")), "rank 1\n  waits & waits")._repr_mimebundle_()
    assert bundle["text/plain"].startswith("Not yet: average\n  expected: a <b>\n")
    assert "a &lt;b&gt;" in bundle["text/html"] and "waits &amp; waits" in bundle["text/html"]
    assert "Hint" not in bundle["text/html"] and " color:" not in bundle["text/html"]


def test_box_in_html_shows_what_stands_in_backticks_as_code():
    html = FailureBox("average", (("hint", "`a <b>` is kept, ` is not code"),))._repr_mimebundle_()["text/html"]
    assert "<code>a &lt;b&gt;</code> is kept, ` is not code</div>" in html


def test_failed_check_in_a_rank_is_a_box(capsys):
    def check():
        raise CheckFailed("a sum", "a mean")

    with turn("average"):
        run(check, world_size=2, backend="gloo")
    assert capsys.readouterr().out == "2 ranks on Gloo\nNot yet: average\n  Expected: a sum. Got: a mean.\n"


def test_error_of_the_functions_own_shows_its_line_and_no_traceback(capsys):
    with turn("average"):
        divide(1, 0)
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["Not yet: average", "  ZeroDivisionError: division by zero"]
    assert "test_check.py, line" in out[2] and out[2].endswith("in divide")
    assert out[3].strip() == "return total / num_ranks" and len(out) == 4


def divide(total, num_ranks):
    return total / num_ranks


def test_failed_run_shows_its_report(capsys):
    with turn("average"):
        run(divide, 1, 0, world_size=2, backend="gloo")
    out = capsys.readouterr().out
    assert out.startswith("2 ranks on Gloo\nNot yet: average\n") and "ZeroDivisionError" in out and "in divide" in out
    assert "Traceback" not in out


def test_torchs_own_not_implemented_is_an_error_of_the_function(capsys):
    with turn("average"):
        raise NotImplementedError("Could not run 'aten::add' on this backend")
    assert capsys.readouterr().out.startswith("Not yet: average\n  NotImplementedError: Could not run")


def test_picture_of_a_failed_check_is_shown_below_and_may_fail(capsys):
    def fails():
        raise OSError("no font")

    for picture, end in ((lambda: "the picture", "the picture\n"), (fails, "got:      b\n")):
        with turn("average"):
            raise CheckFailed("a", "b", picture=picture)
        assert capsys.readouterr().out.endswith(end)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunStopped("The run was stopped.")])
def test_stop_button_stops(error):
    with pytest.raises(type(error)), turn("average"):
        raise error


def test_right_answer_says_what_the_lesson_says(capsys):
    with turn("average"):
        print("Right.")
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize("value", [False, 0, None, (1, 2), 800])
def test_a_value_that_is_no_text_is_shown_as_text(value, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    with turn("mean"):
        raise CheckFailed("three counts", value)
    (box,) = shown
    assert str(value) in box._repr_mimebundle_()["text/html"] and f"got:      {value}" in repr(box)
