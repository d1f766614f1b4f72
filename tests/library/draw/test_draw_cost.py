"""Time against size: the crossovers are found, marked and described, whichever way the formulas are given."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsize import draw

pytestmark = pytest.mark.filterwarnings("error")


def line(latency_s, s_per_byte):
    return lambda size_bytes: latency_s + s_per_byte * size_bytes


TREE, RING, SLOW = line(1e-6, 1e-9), line(1e-5, 1e-10), line(1e-3, 1e-8)


def texts(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def test_the_crossover_is_marked_and_described():
    picture = draw.cost({"tree": TREE, "ring": RING}, title="All-reduce")
    assert texts(picture) == ["from 10.0 kB: ring"]
    assert picture.axes[0].get_xlabel() == "message size"
    assert picture.alt.startswith(
        "All-reduce, from 1.00 kB to 1.00 GB: tree is the fastest up to 10.0 kB, then ring. 1.00 kB takes tree 2.00 µs"
    )
    (mark,) = (drawn for drawn in picture.axes[0].lines if drawn.get_marker() == "X")
    assert mark.get_xdata()[0] == pytest.approx(1e4)
    assert mark.get_ydata()[0] == pytest.approx(1.1e-5)


def test_an_algorithm_that_is_never_the_fastest_has_no_crossover():
    assert draw.crossovers({"slow": SLOW, "tree": TREE}) == []
    picture = draw.cost({"slow": SLOW, "tree": TREE}, x_label="bytes of gradients")
    assert texts(picture) == [] and "tree is the fastest throughout" in picture.alt
    assert picture.axes[0].get_xlabel() == "bytes of gradients"


def test_one_formula_written_in_two_ways_has_no_crossover():
    ways = {"a": lambda size: 30 * (5e-6 + size / 16 / 25e9), "b": lambda size: 30 * 5e-6 + 30 * size / (16 * 25e9)}
    assert draw.crossovers(ways) == []


def test_every_change_of_the_fastest_is_found_even_two_within_one_step_of_the_grid():
    middle = line(5.48e-6, 5.48e-10)
    found = draw.crossovers({"tree": TREE, "ring": RING, "middle": middle}, (1e3, 1e6))
    assert [(old, new) for _, old, new in found] == [("tree", "middle"), ("middle", "ring")]
    assert [size for size, _, _ in found] == pytest.approx([4.48e-6 / 4.52e-10, 4.52e-6 / 4.48e-10])


@given(st.floats(1e-7, 1e-4), st.floats(1.1, 100), st.floats(1e-12, 1e-9), st.floats(1.1, 100))
def test_the_crossover_of_two_lines_is_where_they_are_equal(latency_s, more, s_per_byte, less):
    early, late = line(latency_s, s_per_byte * less), line(latency_s * more, s_per_byte)
    expected = latency_s * (more - 1) / (s_per_byte * (less - 1))
    found = draw.crossovers({"early": early, "late": late}, (1e2, 1e9))
    if 101 < expected < 0.99e9:
        ((size, old, new),) = found
        assert (old, new) == ("early", "late") and size == pytest.approx(expected, rel=1e-6)
    elif not 99 < expected < 1.01e9:
        assert found == []


def test_a_series_is_followed_on_straight_lines_between_its_points():
    series = {size: RING(size) for size in (1e3, 1e4, 1e5, 1e6)}
    ((size, _, _),) = draw.crossovers({"tree": TREE, "ring": series}, (1e3, 1e6))
    assert size == pytest.approx(1e4, rel=0.01)
    power = {1e3: 1e-3, 1e5: 1e-1}
    drawn = draw.cost({"power": power}).axes[0].lines[0]
    kink = draw.cost({"kink": {1e3: 1e-3, 2e3: 5e-3, 1e5: 6e-3}}).axes[0].lines[0]
    assert [2e3, 5e-3] in kink.get_xydata().tolist()
    assert all(time_s == pytest.approx(size * 1e-6) for size, time_s in drawn.get_xydata())


def test_where_a_series_ends_is_no_crossover():
    picture = draw.cost({"long": {1e3: 1e-5, 1e8: 5e-3}, "short": {1e4: 1e-6, 1e6: 2e-6}})
    assert texts(picture) == []
    assert "from 10.0 kB to 1.00 MB, where all have a time, short is the fastest throughout" in picture.alt


def test_series_that_share_no_size_are_drawn_and_not_compared():
    picture = draw.cost({"small": {1e3: 1e-5, 1e4: 2e-5}, "large": {1e6: 1e-6, 1e7: 2e-6}})
    assert texts(picture) == [] and "there is no size for which all have a time" in picture.alt
    assert draw.crossovers({"small": {1e3: 1e-5}, "large": {1e6: 1e-6}}) == []


def test_measured_points_have_their_algorithms_style_and_a_spread():
    picture = draw.cost({"tree": TREE, "ring": RING}, measured={"ring": {1e6: [2e-4, 1e-4, 4e-4], 1e3: 1e-5}})
    axes = picture.axes[0]
    (points,) = axes.containers
    assert list(points.lines[0].get_xdata()) == [1e3, 1e6]
    assert list(points.lines[0].get_ydata()) == [1e-5, 2e-4]
    assert points.lines[0].get_color() == axes.lines[1].get_color()
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["tree", "ring", "ring, measured"]
    assert picture.alt.endswith("Points show measurements of ring.")


def test_axes_are_described_in_units():
    picture = draw.cost({"tree": TREE}, (1e3, 1e9))
    picture.draw_without_rendering()
    ticks = [label.get_text() for label in picture.axes[0].get_xticklabels()]
    assert {"1 kB", "100 kB", "1 MB", "1 GB"} <= set(ticks)
    assert {"10 µs", "1 ms", "100 ms"} <= {label.get_text() for label in picture.axes[0].get_yticklabels()}


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        (lambda: draw.cost({}), "There is no cost to draw: give {name: function from bytes to seconds}."),
        (lambda: draw.cost({"a": TREE}, (0, 1e3)), "Sizes go from a number of bytes above 0 to a larger one"),
        (lambda: draw.cost({"a": TREE}, (1e6, 1e3)), "Sizes go from a number of bytes above 0 to a larger one"),
        (lambda: draw.cost({"a": {1e3: 1.0}}), "Sizes go from a number of bytes above 0 to a larger one"),
        (lambda: draw.cost({"a": line(0, 0)}), "a takes 0 s for 1.00 kB: give a time above 0."),
        (lambda: draw.cost({"a": line(-1, 0)}), "a takes -1 s for 1.00 kB: give a time above 0."),
        (lambda: draw.cost({"a": TREE}, measured={"b": {1e3: 0}}), "b was measured to take no time"),
        (lambda: draw.cost({"a": TREE}, measured={"b": {1e3: []}}), "b was measured to take no time"),
    ],
)
def test_what_cannot_be_drawn_is_refused(drawing, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        drawing()


def test_an_error_of_the_formula_itself_comes_through():
    with pytest.raises(ZeroDivisionError):
        draw.cost({"a": lambda size_bytes: 1 / 0})
