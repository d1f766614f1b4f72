"""Labels at the ends of curves: none covers another, each is as near as can be to its line's end."""

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize import draw
from worldsize.draw._line_end_labels import spread

pytestmark = pytest.mark.filterwarnings("error")

ENDS = st.lists(st.tuples(st.floats(-20, 220), st.floats(8, 30)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(ENDS)
def test_labels_are_moved_apart_within_the_panel(labels):
    centres, heights = zip(*labels, strict=True)
    found = spread(centres, heights, 200)
    edges = [(centre - height / 2, centre + height / 2) for centre, height in zip(found, heights, strict=True)]
    assert all(low >= -1e-6 and high <= 200 + 1e-6 for low, high in edges)
    assert all(one[1] <= other[0] + 1e-6 or other[1] <= one[0] + 1e-6 for one, other in combinations(edges, 2))
    for (one, mine), (other, theirs) in combinations(zip(centres, found, strict=True), 2):
        assert one == other or (one < other) == (mine < theirs)  # nothing crosses


def test_labels_that_have_room_stay_where_their_lines_end():
    assert spread([150, 50], [12, 12], 200) == [150, 50]
    assert spread([100, 100, 20], [10, 10, 10], 200) == [105, 95, 20]
    assert spread([0, 0], [10, 10], 200) == [15, 5]
    assert spread([200, 199, 188], [10, 10, 10], 200) == [195, 185, 175]


@pytest.mark.parametrize("difference_from", [None, "curve 0"])
@pytest.mark.parametrize("num_curves", [1, 5, 24])
def test_labels_as_drawn_neither_overlap_nor_leave_the_picture(num_curves, difference_from):
    series = {f"curve {n}": [5 - step / 10 + n * 1e-4 for step in range(40)] for n in range(num_curves)}
    series["curve 0"] = series["curve 0"][:20]
    expect_apart(draw.curves(series, title="All end in one place", difference_from=difference_from))


def test_what_ends_early_or_is_no_number_has_its_label_too():
    long = "an optimizer with a name of many words, and a second sentence about its learning rate"
    diverged = [1.0, 4.0, math.nan, math.inf]
    expect_apart(draw.curves({long: [3.0, 2.0, 1.0], "diverged": diverged, "never": [math.nan] * 3, "short": [1.0]}))


def expect_apart(picture):
    """Fail if a label covers another one or its panel, or is cut."""
    picture.set_dpi(168)
    picture.draw_without_rendering()
    frame = picture.bbox
    for axes in picture.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == len(axes.lines)
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        for box in boxes:
            assert axes.get_window_extent().x1 < box.x0 and box.x1 <= frame.x1
            assert frame.y0 <= box.y0 and box.y1 <= frame.y1
