"""Pictures of what should be against what is, also of values that cannot be drawn."""

import io
import math

import pytest
from PIL import Image

from worldsize.draw.contrast import bars, grid

EXPECTED = {"rank 0": 0.25, "rank 1": 0.75}


def size(png):
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        return image.size


@pytest.mark.parametrize(
    "actual", [{"rank 0": 1.0, "rank 1": 1.0}, {"rank 0": math.nan, "rank 1": -math.inf}, {}, {"rank 0": 10**400}]
)
def test_bars_are_drawn_whatever_came(actual):
    picture = bars(EXPECTED, actual, "What the result is made of", "weight")
    assert size(picture.png()) > (300, 200)
    assert len(picture.png()) < 20_000


def test_bars_say_in_words_what_they_show():
    picture = bars(EXPECTED, {"rank 0": math.nan}, "Weights")
    assert picture.alt == "Weights. rank 0: 0.25 expected, nan got; rank 1: 0.75 expected, nothing got."


def test_a_grid_says_in_words_what_it_shows():
    picture = grid({"bias": ["rank 0's", "its own"]}, ["rank 0", "rank 1"], good="rank 0's", title="Whose")
    assert picture.alt == "Whose. bias: rank 0's on rank 0, its own on rank 1."
    assert len(picture.png()) < 20_000


def test_long_lists_are_cut_and_described_so():
    many = {f"step {number}": float(number) for number in range(100)}
    picture = bars(many, many, "Losses")
    assert "step 11:" in picture.alt and "step 12:" not in picture.alt and "88 more are not drawn" in picture.alt
    assert size(picture.png())[1] < 2000


@pytest.mark.parametrize("draw", [lambda: bars({}, {}, "x"), lambda: grid({}, ["a"], "g", "x")])
def test_nothing_to_compare_is_refused(draw):
    with pytest.raises(ValueError, match="nothing to compare"):
        draw()
