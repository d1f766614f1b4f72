"""The picture of who holds what says whose parts are where, after each step."""

import pytest

from worldsize import draw

HALVED = {
    "start": [[{0}, {0}], [{1}, {1}]],
    "one step": [[{0, 1}, {0}], [{1}, {0, 1}]],
    "two steps": [[{0, 1}, {0, 1}], [{0, 1}, {0, 1}]],
}


def texts(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def framed(picture):
    return sum(patch.get_linewidth() > 1 for patch in picture.axes[0].patches)


def test_the_picture_says_whose_parts_are_where():
    picture = draw.chunks(HALVED, "Two ranks")
    assert picture.alt == (
        "Two ranks: whose parts are in each chunk. start, rank 0: 0 0, rank 1: 1 1; one step, rank 0: all 0, "
        "rank 1: 1 all; two steps, rank 0: all all, rank 1: all all."
    )
    assert {"start", "one step", "two steps", "rank 0", "rank 1"} <= set(texts(picture))
    assert texts(picture).count("all") == 6
    assert picture.png()


def test_what_a_step_has_changed_is_framed():
    assert framed(draw.chunks({"start": HALVED["start"]})) == 0
    assert framed(draw.chunks(HALVED)) == 2 + 2


def test_sums_of_many_ranks_and_many_cells_are_counted():
    ranks = range(8)
    steps = {"start": [[{rank}] * 8 for rank in ranks], "later": [[{0, 1, 2, 3}, {0, 2}, *[ranks] * 6]] * 8}
    picture = draw.chunks(steps)
    assert texts(picture).count("4 of 8") == texts(picture).count("0+2") == 8
    assert picture.alt.startswith("Whose parts are in each chunk. start, rank 0: 0 0")
    assert "later, 48 of 64 complete" in draw.chunks({**steps, "again": steps["later"]}).alt


def test_grids_that_do_not_fit_side_by_side_go_on_below():
    steps = {f"step {number}": HALVED["start"] for number in range(12)}
    one, more = draw.chunks({"start": HALVED["start"]}), draw.chunks(steps)
    assert more.get_size_inches()[1] > 1.5 * one.get_size_inches()[1]
    assert all(patch.get_x() + patch.get_width() <= 9 for patch in more.axes[0].patches)


@pytest.mark.parametrize(
    "steps",
    [
        {},
        {"start": []},
        {"start": [[]]},
        {"start": [[{0}], [{1}, {1}]]},
        {"start": HALVED["start"], "then": [[{0}]]},
    ],
)
def test_steps_of_different_shapes_are_refused(steps):
    with pytest.raises(ValueError, match="There are no chunks to draw"):
        draw.chunks(steps)
