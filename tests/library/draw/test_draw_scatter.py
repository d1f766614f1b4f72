"""Names beside points: none covers another, a mark or a line, wherever the points lie."""

import math
import re
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worldsize import draw
from worldsize.draw import _label_places as label_places
from worldsize.draw._label_places import Box, Leader, place_labels

pytestmark = pytest.mark.filterwarnings("error")

FRAME, RADIUS = Box(0, 0, 560, 250), 4.5
PLACES = st.tuples(st.floats(12, 548), st.floats(12, 238))
SIZES = st.tuples(st.floats(10, 130), st.sampled_from([11, 24]))
NAMES = st.text("abcdefghij 0123456789", min_size=1, max_size=24)


def touches(leader, box):
    """True when one of many places along a line is in a rectangle."""
    (x0, y0), (x1, y1) = leader
    along = [(x0 + (x1 - x0) * part / 200, y0 + (y1 - y0) * part / 200) for part in range(1, 200)]
    return any(box.left < x < box.right and box.bottom < y < box.top for x, y in along)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PLACES, SIZES), min_size=1, max_size=16))
@example([((12.0, 12.0), (10.0, 11))] * 4)  # in a corner, where labels beside the point leave no way for lines
def test_no_label_covers_anything(labels):
    points, sizes = zip(*labels, strict=True)
    found = place_labels(points, sizes, FRAME, RADIUS)
    if found is None:  # a picture then grows
        found = place_labels(points, sizes, Box(0, 0, 560, 700), RADIUS)
    assert found is not None
    boxes = [place.box for place in found]
    leaders = [place.leader for place in found if place.leader]
    for (width, height), box in zip(sizes, boxes, strict=True):
        assert (box.right - box.left, box.top - box.bottom) == pytest.approx((width, height))
        assert Box(-1e-6, -1e-6, 560.001, 700.001).holds(box)
        assert all(math.dist(box.nearest(point), point) >= RADIUS for point in points)
        assert not any(touches(leader, box) for leader in leaders)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@settings(max_examples=8, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=1, max_size=16))
def test_names_as_drawn_do_not_overlap(points):
    picture = draw.scatter(points, x_label="x", y_label="y", log="x")
    picture.set_dpi(168)
    picture.draw_without_rendering()
    axes = picture.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    marks = axes.transData.transform(list(points.values()))
    frame = axes.get_window_extent()
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2) if one.width and other.width)
    for box in boxes:
        assert frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
        assert not any(box.contains(x, y) for x, y in marks)


def test_a_label_lies_beside_its_point_where_it_can():
    (place,) = place_labels([(100, 100)], [(40, 10)], FRAME, RADIUS)
    assert place.leader is None and place.box == Box(106.5, 95, 146.5, 105)
    (place,) = place_labels([(550, 100)], [(40, 10)], FRAME, RADIUS)
    assert place.leader is None and place.box.right == 543.5


def test_a_label_far_away_has_a_line_from_the_mark():
    points = [(250 + 11 * (number % 5), 120 + 11 * (number // 5)) for number in range(15)]
    found = place_labels(points, [(60, 11)] * 15, FRAME, RADIUS) or []
    far = [(point, place) for point, place in zip(points, found, strict=True) if place.leader]
    assert len(far) > 5
    assert not any(one.overlaps(other) for one, other in combinations([place.box for place in found], 2))
    for point, place in far:
        assert math.dist(place.leader.start, point) == pytest.approx(RADIUS)
        assert place.box.nearest(point) == place.leader.end


def test_where_there_is_no_room_there_is_no_place():
    assert place_labels([(20, 20)] * 3, [(30, 30)] * 3, Box(0, 0, 40, 40), RADIUS) is None


def test_lines_that_meet_are_seen():
    assert label_places._cross(Leader((0, 0), (10, 10)), Leader((0, 10), (10, 0)))
    assert label_places._cross(Leader((0, 0), (10, 0)), Leader((5, 0), (15, 0)))
    assert not label_places._cross(Leader((0, 0), (10, 0)), Leader((0, 5), (10, 5)))
    assert label_places._meets(Leader((0, 5), (10, 5)), Box(4, 4, 6, 6))
    assert not label_places._meets(Leader((0, 7), (10, 7)), Box(4, 4, 6, 6))


FAMILIES = {"FSDP": {"full shard": (38e9, 0.33)}, "pipeline": {"GPipe": (79e9, 0.35), "1F1B": (50e9, 0.35)}}


def test_points_are_described_in_the_units_of_their_axes():
    picture = draw.scatter(FAMILIES, x_label="held_bytes", y_label="mfu_fraction", title="Plans, computed", log="x")
    assert picture.alt == (
        "Scatter chart (Plans, computed) of mfu against held, 3 points, x axis logarithmic: "
        "FSDP: full shard at 38 GB and 33%; pipeline: GPipe at 79 GB and 35%, 1F1B at 50 GB and 35%."
    )
    assert picture.axes[0].get_xlabel() == "held" and picture.axes[0].get_xscale() == "log"
    assert picture.axes[0].yaxis.get_major_formatter()(0.35) == "35%"


def test_families_differ_by_colour_and_shape():
    drawn = draw.scatter(FAMILIES, x_label="held_bytes", y_label="mfu_fraction")
    assert len({line.get_color() for line in drawn.axes[0].lines}) == 2
    assert len({str(line.get_marker()) for line in drawn.axes[0].lines}) == 2
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["FSDP", "pipeline"]


def test_mappings_and_rows_are_the_same():
    rows = [("full shard", 38e9, 0.33, "FSDP"), ("GPipe", 79e9, 0.35, "pipeline"), ("1F1B", 50e9, 0.35, "pipeline")]
    labels = {"x_label": "x", "y_label": "y"}
    assert draw.scatter(rows, **labels).alt == draw.scatter(FAMILIES, **labels).alt
    assert draw.scatter({"a": (1, 2)}, **labels).alt == draw.scatter([("a", 1, 2)], **labels).alt
    assert not draw.scatter({"a": (1, 2)}, **labels).legends


def test_many_points_are_not_all_described():
    picture = draw.scatter([(f"{n}", n, n) for n in range(30)], x_label="x", y_label="y")
    assert picture.alt.endswith("19 at 19 and 19, and 10 more.") and "both axes" not in picture.alt


@pytest.mark.parametrize(
    ("points", "log", "sentence"),
    [
        ({}, "", "There is no point to draw: give {name: (x, y), ...}."),
        ({"a": (1, 1)}, "z", "log is 'z'; give"),
        ({"a": (math.nan, 1)}, "", "a is at (nan, 1): give finite numbers."),
        ({"a": (1, 0)}, "xy", "a is at (1, 0): a logarithmic axis has only values above 0."),
        (
            [(f"point {n} of very many, all in one place", 1, 1) for n in range(90)],
            "",
            "There is no room for the names of 90 points",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(points, log, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        draw.scatter(points, x_label="x", y_label="y", log=log)
