"""A mesh shows each rank once, the groups of one axis and whether they stay on their nodes."""

import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyBboxPatch, Rectangle
from torch.distributed.device_mesh import DeviceMesh

from worldsize import draw
from worldsize.draw import _mesh_layout as mesh_layout

pytestmark = pytest.mark.filterwarnings("error")

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def texts(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def boxes(picture):
    return [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]


def frames(picture):
    return [patch for patch in picture.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def test_groups_and_nodes_are_described():
    picture = draw.mesh({"dp": 2, "tp": 4}, "tp", 4, title="Eight ranks")
    assert picture.axes[0].get_title(loc="left") == "Eight ranks: 2 tp groups of 4, each inside one node"
    assert picture.alt == (
        "Eight ranks: dp 2 × tp 4, 8 ranks on 2 nodes of 4. 2 tp groups of 4, each inside one node: 0 to 3; 4 to 7."
    )


def test_groups_that_cross_nodes_say_so():
    picture = draw.mesh({"dp": 2, "tp": 4}, "dp", 4)
    assert picture.alt.endswith("4 dp groups of 2, each across 2 nodes: 0, 4; 1, 5; 2, 6; 3, 7.")
    assert "1 dp group of 8, across 2 nodes: 0 to 7." in draw.mesh({"dp": 8}, ranks_per_node=4).alt
    assert "2 tp groups of 3, each across up to 2 nodes" in draw.mesh({"dp": 2, "tp": 3}, "tp", 4).alt


def test_the_last_axis_is_the_one_without_a_choice():
    assert "4 tp groups of 2" in draw.mesh({"dp": 2, "pp": 2, "tp": 2}).alt


def test_every_rank_has_a_cell_and_each_axis_its_names():
    picture = draw.mesh({"dp": 2, "pp": 2, "tp": 4})
    assert len(boxes(picture)) == 16
    written = Counter(texts(picture))
    assert all(written[str(rank)] == 1 for rank in range(16))
    assert (written["dp 0"], written["dp 1"]) == (1, 1)
    assert (written["pp 0"], written["tp 3"]) == (1, 2)


@given(SIZES)
def test_no_two_ranks_share_a_cell_and_groups_divide_the_ranks(sizes):
    shape = mesh_layout.mesh_of({f"axis{i}": size for i, size in enumerate(sizes)})
    assert len(set(shape.places.values())) == len(shape.ranks)
    for axis, size in shape.sizes.items():
        groups = shape.groups(axis)
        assert sorted(rank for group in groups for rank in group) == shape.ranks
        assert {len(group) for group in groups} == {size}


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_frames_cover_a_nodes_cells_and_no_other(places):
    covered = [
        (column, row)
        for first, last in mesh_layout.rectangles(list(places))
        for column in range(first[0], last[0] + 1)
        for row in range(first[1], last[1] + 1)
    ]
    assert sorted(covered) == sorted(places)


def test_blocks_of_the_outer_axes_stand_apart():
    shape = mesh_layout.mesh_of({"cp": 2, "dp": 2, "pp": 2, "tp": 2})
    assert shape.edges(0) == shape.edges(1) == [0, 1, 2.45, 3.45]
    deeper = mesh_layout.mesh_of({"dp": 2, "pp": 1, "cp": 2, "ep": 1, "tp": 1})
    assert deeper.edges(0) == [0, 1.45, 3.35, 4.8]


def test_groups_differ_by_more_than_colour():
    looks = {(cell.get_facecolor(), cell.get_hatch()) for cell in boxes(draw.mesh({"dp": 36, "tp": 1}, "tp"))}
    assert len(looks) == 36
    few = {cell.get_hatch() for cell in boxes(draw.mesh({"dp": 6, "tp": 2}, "tp"))}
    assert len(few) == 6


def test_a_node_that_lies_apart_has_a_frame_for_each_part():
    assert len(frames(draw.mesh({"dp": 2, "tp": 4}, ranks_per_node=4))) == 2
    assert len(frames(draw.mesh({"dp": 4, "tp": 2}, ranks_per_node=4))) == 2
    assert len(frames(draw.mesh({"dp": 2, "tp": 4}))) == 0
    split = draw.mesh({"tp": 3, "dp": 2}, ranks_per_node=3)
    assert texts(split).count("node 0") == texts(split).count("node 1") == 2


def test_contents_stand_in_their_cells_and_are_described():
    picture = draw.mesh({"pp": 2}, contents={0: "layers 0 to 3", 1: "layers 4 to 7"})
    assert "layers 0 to 3" in texts(picture)
    assert picture.alt.endswith("rank 0 holds layers 0 to 3; rank 1 holds layers 4 to 7.")


def test_one_long_axis_goes_on_in_the_next_row():
    tops = Counter(round(cell.get_y()) for cell in boxes(draw.mesh({"dp": 40})))
    assert sorted(tops.values()) == [8, 16, 16]


def test_a_device_mesh_of_torch_shows_its_own_ranks():
    ranks = torch.tensor([[4, 5], [6, 7]])
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"), _init_backend=False, _rank=4)
    picture = draw.mesh(mesh, "dp", 4)
    assert picture.alt == ("Device mesh: dp 2 × tp 2, 4 ranks on 1 node of 4. 2 dp groups of 2: 4, 6; 5, 7.")


def test_many_groups_are_not_all_described():
    picture = draw.mesh({"dp": 64, "tp": 4}, "tp")
    assert picture.alt.endswith("28 to 31; and 56 more.") and len(boxes(picture)) == 256


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        (lambda: draw.mesh({}), 'A mesh has 1 to 1024 ranks, as in {"dp": 2, "tp": 4}; got {}.'),
        (lambda: draw.mesh({"dp": 0}), "A mesh has 1 to 1024 ranks"),
        (lambda: draw.mesh({"dp": 1025}), "A mesh has 1 to 1024 ranks"),
        (lambda: draw.mesh({"dp": 10**15}), "A mesh has 1 to 1024 ranks"),
        (lambda: draw.mesh({"dp": 2}, "tp"), "The mesh has no axis 'tp': choose one of dp."),
    ],
)
def test_what_cannot_be_drawn_is_refused(drawing, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        drawing()
