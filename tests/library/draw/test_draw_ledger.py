"""The ledger as a picture: near and far guesses, and those that cannot be compared, which say why."""

import math

import pytest

from worldsize import draw, ledger
from worldsize.ledger import Entry, PredictionTable

pytestmark = pytest.mark.filterwarnings("error")


def drawn(**entries):
    return draw.ledger(PredictionTable({name: Entry(*values) for name, values in entries.items()}))


def texts(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def markers(picture):
    lines = [line for line in picture.axes[0].lines if line.get_marker() in ("o", "<", ">")]
    return [(line.get_marker(), float(line.get_xdata()[0])) for line in lines]


def test_predictions_are_factors_of_their_results_in_order():
    picture = drawn(near=(30, 32, "years"), low=(1, 8), high=(40, 10))
    assert markers(picture) == [("o", 30 / 32), ("<", 1 / 8), (">", 4)]
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["near", "low", "high"]
    assert texts(picture) == ["30 for 32 years", "1 for 8", "40 for 10"]
    title = "1 of 3 within a factor of two; the median is off by a factor of 4"
    assert picture.axes[0].get_title(loc="left") == f"Your predictions\n{title}"
    assert picture.alt == (
        f"Your predictions over their results: {title}. In order: near, 30 for 32 years; low, 1 for 8; high, 40 for 10."
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((None, 3), "no prediction"),
        ((None, None), "no prediction"),
        ((3, None), "no result yet"),
        ((0, 3), "0 for 3: no ratio"),
        ((3, 0), "3 for 0: no ratio"),
        ((-3, 3), "-3 for 3: no ratio"),
        ((math.inf, 3), "inf for 3: no ratio"),
        ((math.inf, math.inf), "inf for inf: no ratio"),
        ((3, math.nan), "3 for nan: no ratio"),
        ((5e-324, 1e300), "4.94e-324 for 1e300: no ratio"),
    ],
)
def test_what_cannot_be_compared_says_why_and_counts_for_nothing(values, reason):
    picture = drawn(wild=values, tame=(1, 1))
    assert texts(picture) == [reason, "1 for 1"]
    assert "1 of 1 within a factor of two; the median is off by a factor of 1. 1 cannot be compared." in picture.alt


def test_both_zero_is_right_and_both_below_zero_have_a_ratio():
    assert markers(drawn(zero=(0, 0), below=(-2, -4))) == [("o", 1.0), ("o", 0.5)]


def test_a_guess_that_is_very_far_off_stands_at_the_edge_with_its_factor():
    picture = drawn(high=(1e12, 2e6, "B"), low=(1e-9, 1))
    assert markers(picture) == [(">", 1000), ("<", 1 / 1000)]
    assert texts(picture) == ["1e12 for 2e6 B, a factor of 5e5", "1e-09 for 1, a factor of 1e9"]


def test_a_ledger_without_any_pair_is_still_drawn():
    picture = drawn(first=(3, None))
    assert "none can be compared with a result yet. 1 cannot be compared." in picture.alt
    assert markers(picture) == []


def test_a_whole_course_is_described_by_its_worst_guesses():
    picture = drawn(**{f"q{i}": (1 + i, 1) for i in range(40)})
    assert picture.alt.endswith("Of 40 the furthest off: q39, 40 for 1; q38, 39 for 1; q37, 38 for 1.")
    assert picture.get_size_inches()[1] < 11


def test_an_empty_ledger_says_how_to_begin():
    with pytest.raises(ValueError, match=r"The ledger is empty: make a prediction with `predictions\.ask"):
        draw.ledger(PredictionTable({}))


def test_what_the_ledger_shows_is_what_is_drawn(tmp_path):
    predictions = ledger.Predictions("week01", tmp_path / "ledger.json")
    predictions.ask("years on one GPU", 16, "years")
    predictions.reveal("years on one GPU", 32, "years")
    assert "years on one GPU, 16 for 32 years" in draw.ledger(predictions.table()).alt
