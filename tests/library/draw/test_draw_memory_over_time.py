"""Memory over time: what is live when, the peak marked and described."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsize import draw

pytestmark = pytest.mark.filterwarnings("error")

WEIGHTS = [(0, 2e6)]
ACTIVATIONS = [(0.001, 1e6), (0.002, 3e6), (0.004, 0)]
CHANGES = st.lists(st.tuples(st.integers(0, 9), st.integers(-100, 100)))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_peak_is_marked_and_described():
    picture = draw.memory_over_time({"rank 0": {"weights": WEIGHTS, "activations": ACTIVATIONS}}, title="A step")
    assert picture.alt == (
        "Stacked areas over 4.00 ms, A step: rank 0 peaks at 5.00 MB, at 2.00 ms "
        "(weights 2.00 MB, activations 3.00 MB), and ends with 2.00 MB."
    )
    axes = picture.axes[0]
    assert texts(axes) == ["peak 5.00 MB"]
    (marker,) = (line for line in axes.lines if line.get_marker() == "v")
    assert (list(marker.get_xdata()), list(marker.get_ydata())) == ([2], [5])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (ms)", "rank 0\n(MB)")


def test_areas_are_steps_one_on_the_other():
    axes = draw.memory_over_time({"rank 0": {"weights": WEIGHTS, "activations": ACTIVATIONS}}).axes[0]
    (outline,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert list(outline.get_xdata()) == [0, 1, 2, 4, 4]
    assert list(outline.get_ydata()) == [2, 3, 5, 2, 2]
    assert [area.get_hatch() for area in axes.collections] == ["", "//"]
    corners = axes.collections[1].get_paths()[0].vertices.tolist()
    assert [2, 3] in corners and [2, 5] in corners and [1, 5] not in corners


def test_each_label_has_a_panel_on_the_same_axes():
    parts = {"stage 0": {"activations": [(0, 4e9), (3, 0)]}, "stage 1": {"activations": [(1, 2e9), (2, 0)]}}
    picture = draw.memory_over_time(parts, capacity_bytes=3e9, capacity_label="one GPU")
    first, second = picture.axes
    assert first.get_xlim() == second.get_xlim() == (0, 3)
    assert first.get_ylim() == second.get_ylim()
    assert "stage 0 peaks at 4.00 GB, which does not fit, at 0 s" in picture.alt
    assert "stage 1 peaks at 2.00 GB, at 1.00 s" in picture.alt
    assert picture.alt.endswith("A line marks 3.00 GB, one GPU.")
    legend = [text.get_text() for text in picture.legends[0].get_texts()]
    assert sorted(legend) == ["activations", "one GPU, 3.00 GB"]


def test_live_bytes_adds_up_what_is_allocated_and_freed():
    assert draw.live_bytes([(2, -5), (0, 5), (1, 7), (3, -7)]) == [(0, 5), (1, 12), (2, 7), (3, 0)]


def test_what_is_allocated_and_freed_at_one_time_makes_no_peak():
    assert draw.live_bytes([(0, 5), (1, 5), (1, -5)]) == [(0, 5), (1, 5)]
    assert draw.live_bytes([]) == []


@given(CHANGES)
def test_live_bytes_ends_with_the_sum_and_has_each_time_once(changes):
    levels = draw.live_bytes(changes)
    assert [time_s for time_s, _ in levels] == sorted({time_s for time_s, _ in changes})
    assert not levels or levels[-1][1] == sum(change for _, change in changes)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "There is no memory to draw: give {label: {part: [(time_s, bytes), ...]}}"),
        ({"rank 0": {}}, "There is no memory to draw"),
        ({"rank 0": {"weights": []}}, "There is no memory to draw"),
        ({"rank 0": {"weights": [(0, 0)]}}, "There is no memory to draw"),
        ({"rank 0": {"a": [(0, 1), (2, -5)]}}, "rank 0, a: -5 bytes are live at 2 s. More is freed than was allocated"),
    ],
)
def test_what_cannot_be_drawn_is_refused(parts, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        draw.memory_over_time(parts)
