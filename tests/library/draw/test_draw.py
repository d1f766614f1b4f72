"""Pictures say in words what they show, mark idle time, and refuse what cannot be drawn."""

import base64
import re
import warnings

import pytest

from worldsize import draw, palette
from worldsize.timeline import Event, Timeline

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def texts(picture):
    return [text.get_text() for axes in picture.axes for text in axes.texts]


def legend(picture):
    return [text.get_text() for text in picture.legends[0].get_texts()]


def test_parts_and_lines_differ_by_more_than_colour():
    assert len({hatch for _, hatch in palette.PART_STYLES}) == len(palette.PART_STYLES)
    assert len({tuple(style[1:]) for style in palette.LINE_STYLES}) == len(palette.LINE_STYLES)


def test_memory_says_what_does_not_fit():
    parts = {"small": {"weights": 10e9, "gradients": 20e9}, "large": {"weights": 100e9}}
    picture = draw.memory(parts, capacity_bytes=80e9, title="Two models", capacity_label="one GPU")
    assert texts(picture) == ["30.0 GB", "100 GB: does not fit"]
    assert legend(picture) == ["one GPU, 80.0 GB", "weights", "gradients"]
    assert "small 30.0 GB (weights 10.0 GB, gradients 20.0 GB); large 100 GB" in picture.alt
    assert picture.alt.endswith("A line marks 80.0 GB, one GPU; 1 of 2 do not fit.")


def test_memory_stacks_the_parts():
    bars = draw.memory({"rank 0": {"weights": 2e6, "gradients": 3e6}}).axes[0].patches
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 2), (2, 3)]


def test_the_line_at_the_capacity_goes_through_no_label():
    axes = draw.memory({"fits": {"a": 76e9}, "less": {"a": 60e9}, "more": {"a": 120e9}}, 80e9).axes[0]
    assert [round(text.xy[0]) for text in axes.texts] == [80, 60, 120]


def test_many_bars_stay_on_one_screen_and_are_described_by_the_largest_and_the_smallest():
    picture = draw.memory({f"rank {rank}": {"weights": 1e9 + rank} for rank in range(32)})
    assert picture.get_size_inches()[1] < 8
    bars = "32 bars, the largest rank 31 1.00 GB (weights 1.00 GB), the smallest rank 0 1.00 GB"
    assert bars in picture.alt and "rank 7" not in picture.alt


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


def test_curves_stand_at_their_places():
    picture = draw.curves({"long": [1, 2, 3], "short": [2, 4]}, x=[0, 0.5, 2], difference_from="long")
    places = [[list(line.get_xdata()) for line in axes.lines] for axes in picture.axes[:2]]
    assert places == [[[0, 0.5, 2], [0, 0.5]], [[0, 0.5]]]


def test_bytes_by_axis_are_stacked_for_each_rank_and_no_axis_comes_last():
    def sent(rank, group, size_bytes):
        return Event(rank, "communication", "communication", "broadcast", 0.0, 1.0, 0, size_bytes, (0, 1), group)

    picture = draw.bytes_by_axis(Timeline([sent(0, "0", 1e6), sent(0, "tp 5", 2e6), sent(1, "dp 2", 4e6)]), "A step")
    assert picture.alt == (
        "Stacked bars, A step: rank 0 3.00 MB (dp 0 B, tp 2.00 MB, no axis 1.00 MB); "
        "rank 1 4.00 MB (dp 4.00 MB, tp 0 B, no axis 0 B)."
    )
    assert picture.axes[0].get_xlabel() == "sent (MB)"


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        (lambda: draw.bytes_by_axis(Timeline()), "No rank is known to have sent anything"),
        (lambda: draw.memory({}), "There is no memory to draw"),
        (lambda: draw.memory({"rank 0": {}}), "There is no memory to draw"),
        (lambda: draw.curves({}), "There is no curve to draw"),
        (lambda: draw.curves({"a": [1]}, difference_from="b"), "No curve is called 'b': choose one of a."),
        (lambda: draw.curves({"a": [1, 2]}, x=[0.5]), "The longest curve has 2 values, but x has only 1."),
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
