"""What tensors hold over operations: areas by kind, and what holds most at the peak."""

from dataclasses import replace

import pytest

from worldsize import draw
from worldsize.memory import Holding, MemoryUse

HOLDINGS = [Holding("activations", "Mlp 1", "line 5: h = up(x)", 3_000_000, 2), Holding("weights", "", "", 2_000_000)]
USE = MemoryUse(
    [1, 2, 3], {"weights": [2_000_000] * 3, "activations": [0, 3_000_000, 0], "gradients": [0] * 3}, HOLDINGS
)


def test_the_peak_is_explained_in_the_picture_and_in_words():
    picture = draw.memory_use({"rank 0": USE})
    (axes,) = picture.axes
    assert [text.get_text() for text in axes.texts] == [
        "peak 5.00 MB",
        "most at the peak:\n"
        "activations 3.00 MB in 2 storages (Mlp 1, line 5: h = up(x))\n"
        "weights 2.00 MB (before the measurement)",
    ]
    assert axes.get_xlabel() == "operations" and axes.get_xlim() == (1, 3)
    assert axes.get_ylim()[1] > 1.5 * 5  # room for the text
    assert "rank 0 peaks at 5.00 MB, at operation 2 (weights 2.00 MB, activations 3.00 MB)" in picture.alt
    assert picture.alt.startswith("Stacked areas over 2 operations, What the tensors hold: ")
    assert picture.alt.endswith(
        "rank 0: The peak is 5.00 MB: activations 3.00 MB, weights 2.00 MB. Where, largest kind first: "
        "activations 3.00 MB in 2 storages (Mlp 1, line 5: h = up(x)); weights 2.00 MB (before the measurement)."
    )


def test_only_kinds_that_held_anything_are_in_the_legend():
    picture = draw.memory_use({"rank 0": USE})
    assert {text.get_text() for text in picture.legends[0].get_texts()} == {"weights", "activations"}


@pytest.mark.parametrize(("capacity_bytes", "is_drawn"), [(6_000_000, True), (80_000_000_000, False), (None, False)])
def test_a_capacity_is_drawn_where_it_is_near(capacity_bytes, is_drawn):
    picture = draw.memory_use({"rank 0": replace(USE, capacity_bytes=capacity_bytes)})
    assert ("A line marks" in picture.alt) is is_drawn


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="no memory to draw"):
        draw.memory_use({})
    with pytest.raises(ValueError, match="no memory to draw"):
        draw.memory_use({"rank 0": MemoryUse([1], {"weights": [0]})})
    with pytest.raises(ValueError, match="must be one of seconds, operations"):
        draw.memory_over_time({"rank 0": {"weights": [(0, 1)]}}, axis="steps")  # type: ignore[arg-type]
