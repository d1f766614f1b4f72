"""Points on a circle stand at their angles, and arrows say where they point."""

import math

import pytest

from worldsize import draw

ANGLES = {"$x_t$": 0.0, "$x_{t+1}$": math.pi / 3, "opposite": 2 * math.pi / 3}


def test_points_and_arrows_are_described_with_their_directions():
    said = draw.circle(ANGLES, [("$x_t$", "$x_{t+1}$"), ("", "opposite")], "An edge").alt
    assert said.startswith("Points on a circle (An edge): x_t at 0°; x_t+1 at 60°; opposite at 120°; ")
    assert "an arrow from x_t to x_t+1 points to 120°" in said  # a chord of 60° is parallel to the radius at 120°
    assert said.endswith("an arrow from the centre to opposite points to 120°.")


def test_points_lie_on_the_circle_and_names_beside_it():
    axes = draw.circle(ANGLES).axes[0]
    places = [tuple(points.get_offsets()[0]) for points in axes.collections]
    assert places == [pytest.approx((math.cos(angle), math.sin(angle))) for angle in ANGLES.values()]
    assert [text.get_text() for text in axes.texts] == [*ANGLES]
    assert all(math.hypot(*text.get_position()) > 1.1 for text in axes.texts)


@pytest.mark.parametrize(
    ("angles", "arrows", "sentence"),
    [
        ({}, [], "There is no point to draw"),
        (ANGLES, [("", "x")], "No point is called 'x'"),
        (ANGLES, [("", "")], "from the centre to the centre has no length"),
    ],
)
def test_what_cannot_be_drawn_is_refused(angles, arrows, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw.circle(angles, arrows)
