"""Pictures say in words what they show, mark idle time, and refuse what cannot be drawn."""

import base64
import re
import warnings

import pytest

from worldsize import draw
from worldsize.timeline import Event, Timeline

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def two_ranks():
    """Rank 0 computes 6 ms of 10, then talks for 4; rank 1 computes 3, is idle for 3, talks for 4."""
    return Timeline.of_events(
        [
            Event(0, "main", "forward", "forward", 1.000, 1.006),
            Event(0, "main", "communication", "all-reduce", 1.006, 1.010),
            Event(1, "main", "forward", "forward", 1.000, 1.003),
            Event(1, "main", "communication", "all-reduce", 1.006, 1.010),
        ]
    )


def texts(picture):
    return [text.get_text() for axes in picture.axes for text in axes.texts]


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_timeline_tells_communication_and_idle_time(two_ranks):
    picture = draw.timeline(two_ranks, "Two ranks")
    assert picture.axes[0].get_title(loc="left") == "Two ranks: 40% communication, 15% idle"
    assert "2 ranks over 10.0 ms" in picture.alt
    assert "forward 45%, communication 40%, idle 15%" in picture.alt
    assert legend(picture) == ["forward", "communication", "idle"]
    assert picture.axes[0].get_xlabel() == "time (ms)"
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["rank 0", "rank 1"]


def test_timeline_labels_bars_that_are_wide_enough(two_ranks):
    short = Event(0, "main", "update", "update", 1.010, 1.0101)
    assert sorted(texts(draw.timeline(Timeline([*two_ranks.events, short])))) == ["all-reduce"] * 2 + ["forward"] * 2


def test_timeline_counts_nested_spans_once():
    outer = Event(0, "main", "communication", "all", 0.0, 1.0)
    inner = Event(0, "main", "communication", "part", 0.2, 0.8)
    assert "100% communication, 0% idle" in draw.timeline(Timeline([outer, inner])).axes[0].get_title(loc="left")


def test_timeline_gives_each_stream_a_row_and_an_unknown_kind_a_style():
    events = [Event(0, "main", "compute", "a", 0, 1), Event(0, "side", "thinking", "b", 0, 1)]
    picture = draw.timeline(Timeline(events))
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["rank 0, main", "rank 0, side"]
    assert legend(picture) == ["compute", "thinking", "idle"]
    assert "communication" not in picture.axes[0].get_title(loc="left")


def test_kinds_differ_by_more_than_colour():
    # compute is the whole of a step of which forward is a part: they do not share a picture
    styles = [style for kind, style in draw.KIND_STYLES.items() if kind != "compute"]
    assert len({hatch for _, hatch in styles}) == len({colour for colour, _ in styles}) == len(styles)
    assert len({hatch for _, hatch in draw.PART_STYLES}) == len(draw.PART_STYLES)
    assert len({tuple(style[1:]) for style in draw.LINE_STYLES}) == len(draw.LINE_STYLES)


def test_memory_says_what_does_not_fit():
    parts = {"small": {"weights": 10e9, "gradients": 20e9}, "large": {"weights": 100e9}}
    picture = draw.memory(parts, capacity_bytes=80e9, title="Two models", capacity_label="one GPU")
    assert texts(picture) == ["30.0 GB", "100 GB: does not fit"]
    assert legend(picture) == ["one GPU, 80.0 GB", "weights", "gradients"]
    assert "small 30.0 GB (weights 10.0 GB, gradients 20.0 GB); large 100 GB" in picture.alt
    assert "A line marks 80.0 GB, one GPU." in picture.alt


def test_memory_stacks_the_parts():
    bars = draw.memory({"rank 0": {"weights": 2e6, "gradients": 3e6}}).axes[0].patches
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 2), (2, 3)]


def test_scaling_tells_speed_up_efficiency_and_fit():
    picture = draw.scaling({1: [1.0, 1.0, 1.2], 2: [0.6, 0.6, 0.7], 4: [0.4, 0.4, 0.4]})
    assert "2 ranks 1.67 times as fast, efficiency 83%; 4 ranks 2.50 times as fast, efficiency 62%" in picture.alt
    assert "serial fraction of 20%" in picture.alt
    assert texts(picture) == ["100%", "83%", "62%"]


def test_amdahl_fit_finds_the_fraction_that_made_the_points():
    assert draw.amdahl_fit({n: 1 / (0.1 + 0.9 / n) for n in (1, 2, 4, 8)}) == pytest.approx(0.1)
    assert draw.amdahl_fit({1: 1.0, 2: 0.5}) == 1  # slower than one rank
    assert draw.amdahl_fit({1: 1.0, 2: 2.5}) == 0  # faster than ideal
    assert draw.amdahl_fit({1: 1.0}) == 0


def test_curves_show_the_largest_difference():
    picture = draw.curves({"1 rank": [2.0, 1.0], "2 ranks": [2.0, 1.25]}, title="Loss", difference_from="1 rank")
    assert len(picture.axes) == 2
    assert list(picture.axes[1].lines[0].get_ydata()) == [0, 0.25]
    assert picture.alt.startswith("Line chart (Loss) of loss against step: 1 rank from 2 to 1; 2 ranks from 2 to 1.25.")
    assert picture.alt.endswith("The largest difference from 1 rank is 2.5e-01.")


def test_curves_that_should_agree_get_thinner():
    lines = draw.curves({name: [1, 2] for name in "abc"}, difference_from="a").axes[0].lines
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        (lambda: draw.timeline(Timeline([])), "The timeline is empty: mark a step's parts"),
        (lambda: draw.memory({}), "There is no memory to draw"),
        (lambda: draw.memory({"rank 0": {}}), "There is no memory to draw"),
        (lambda: draw.scaling({2: [1.0]}), "Scaling is told relative to one rank"),
        (lambda: draw.scaling({1: [1.0], 2: []}), "Scaling is told relative to one rank"),
        (lambda: draw.curves({}), "There is no curve to draw"),
        (lambda: draw.curves({"a": [1]}, difference_from="b"), "No curve is called 'b': choose one of a."),
    ],
)
def test_what_cannot_be_drawn_is_refused(drawing, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        drawing()


def test_picture_shows_as_image_html_and_text_in_one_bundle():
    picture = draw.curves({'"a" < b': [1, 2]})
    bundle = picture._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/html", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert bundle["text/plain"] == picture.alt
    assert 'alt="Line chart of loss against step: &quot;a&quot; &lt; b from 1 to 2."' in bundle["text/html"]
    assert "http" not in bundle["text/html"]


def test_same_data_gives_the_same_bytes(two_ranks):
    assert draw.timeline(two_ranks).png() == draw.timeline(two_ranks).png()
