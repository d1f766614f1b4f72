"""Speed-up and efficiency share a picture, each on its own axis; several series go by what they are."""

import re

import numpy as np
import pytest

from worldsize import draw

pytestmark = pytest.mark.filterwarnings("error")

STEP_TIMES_S = {1: [1.0, 1.0, 1.2], 2: [0.6, 0.6, 0.7], 4: [0.4, 0.4, 0.4]}


def labels(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_scaling_tells_speed_up_efficiency_and_fit():
    picture = draw.scaling(STEP_TIMES_S)
    assert "2 ranks 1.67 times as fast, efficiency 83%; 4 ranks 2.50 times as fast, efficiency 62%" in picture.alt
    assert picture.alt.endswith("Amdahl's law fits with a serial fraction of 20%.")
    assert labels(picture)[:2] == ["ideal", "Amdahl, serial fraction 20% (fit)"]
    assert labels(picture)[2:] == ["measured: median, 10th to 90th percentile"]


def test_efficiency_is_a_dashed_line_on_an_axis_of_its_own_on_the_right():
    left, right = draw.scaling(STEP_TIMES_S).axes
    assert right.yaxis.get_label_position() == "right"
    assert right.get_ylabel() == "efficiency = speed-up / ranks (dashed)"
    assert list(right.lines[0].get_ydata()) == pytest.approx([100, 83.33, 62.5], abs=0.01)
    assert right.lines[0].is_dashed() and right.get_ylim() == (0, 115)
    assert [text.get_text() for text in right.texts] == ["100%", "83%", "62%"]
    assert "speed-up over one rank" in left.get_ylabel()


def test_a_label_of_efficiency_keeps_clear_of_the_speed_up():
    right = draw.scaling({n: [0.13 + 0.87 / n] for n in (1, 2, 4, 8)}).axes[1]
    assert [text.get_va() for text in right.texts] == ["bottom", "bottom", "bottom", "top"]


def test_a_label_of_a_low_efficiency_keeps_clear_of_the_axis():
    picture = draw.scaling({n: [0.9 + n / 10] for n in (1, 2, 8, 64)})
    picture.draw_without_rendering()
    axes, right = picture.axes
    lowest, *_ = sorted(right.texts, key=lambda text: text.get_window_extent().y0)
    assert lowest.get_text() == "0%" and lowest.get_va() == "bottom"
    assert lowest.get_window_extent().y0 > axes.bbox.y0


def test_labels_of_efficiency_hide_the_lines_behind_them():
    right = draw.scaling(STEP_TIMES_S).axes[1]
    assert {text.get_bbox_patch().get_facecolor() for text in right.texts} == {(1.0, 1.0, 1.0, 1.0)}


def test_several_series_say_what_they_are():
    predicted = {n: [1 / n] for n in (1, 2, 4, 8)}
    picture = draw.scaling({"measured": STEP_TIMES_S, "predicted": predicted}, "Two")
    assert set(labels(picture)) == {
        "ideal",
        "Amdahl, serial fraction 20% (fit to measured)",
        "measured: median, 10th to 90th percentile",
        "predicted",
    }
    assert picture.alt.startswith("Two: measured, 2 ranks 1.67 times as fast")
    assert ". predicted, 2 ranks 2.00 times as fast, efficiency 100%;" in picture.alt
    assert picture.alt.endswith("fits to measured with a serial fraction of 20%.")
    assert [len(line.get_xdata()) for line in picture.axes[1].lines] == [3, 4]


def test_many_ranks_are_doublings_apart():
    few, many = ({n: [1 / n] for n in counts} for counts in ((1, 8, 16), (1, 8, 64)))
    assert draw.scaling(few).axes[0].get_xscale() == "linear"
    axes = draw.scaling(many).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8", "64"]


@pytest.mark.parametrize(
    "times", [{}, {2: [1.0]}, {1: [1.0], 2: []}, {"measured": {2: [1.0]}}, {"a": [1.0]}, {"a": {1: [1.0]}, "b": [1.0]}]
)
def test_scaling_needs_one_rank(times):
    with pytest.raises(ValueError, match=re.escape("Scaling is relative to one rank: give {1: [seconds, ...]")):
        draw.scaling(times)


def test_numbers_of_ranks_may_be_numpys():
    times = {np.int64(1): [1.0], np.int64(2): [0.6]}
    assert draw.scaling(times).alt == draw.scaling({1: [1.0], 2: [0.6]}).alt


def test_scaling_refuses_a_step_that_takes_no_time():
    with pytest.raises(ValueError, match="A step takes more than 0 s"):
        draw.scaling({1: [1.0], 2: [0.0, 1.0]})


def test_one_rank_alone_is_drawn():
    assert draw.scaling({1: [1.0]}).alt.startswith("Speed-up, measured: one rank alone.")


@pytest.mark.parametrize(
    ("step_times_s", "percent"),
    [
        ({n: [0.1 + 0.9 / n] for n in (1, 2, 4, 8)}, 10),
        ({1: [1.0], 2: [2.0]}, 100),  # slower than one rank
        ({1: [1.0], 2: [0.4]}, 0),  # faster than ideal
        ({1: [1.0]}, 0),
    ],
)
def test_the_law_is_fitted_to_what_was_measured(step_times_s, percent):
    assert draw.scaling(step_times_s).alt.endswith(f"Amdahl's law fits with a serial fraction of {percent}%.")
