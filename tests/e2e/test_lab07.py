"""Lab 7's open checks as a student runs them: with the solution, and with the usual mistakes."""

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab07"
SOLUTION = solution_cells(LAB / "lab07.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab07", tmp_path_factory.mktemp("lab07"), SOLUTION)


def shown(outputs):
    return [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]


def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 7
    for name in ("check_FullyShard", "check_Prefetching"):
        (picture,) = shown(solved[name])
        assert picture.startswith("Timeline (") and "emulated" in picture


def test_the_last_cell_compares_the_stages(solved):
    (table,) = shown(solved["all_stages"])
    rows = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == ["2.000", "2.000", "2.000", "3.000"]
    held = [float(row[2]) for row in rows]
    assert held == sorted(held, reverse=True) and len({row[3] for row in rows}) == 1


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("piece_is_a_view", "check_shard", "keeps the whole vector alive"),
        ("pads_each_tensor", "check_shard", "the whole that is cut and padded"),
        ("unshard_copies", "check_shard", "share the vector's memory"),
        ("never_frees", "check_gather_and_free", "0 bytes after free"),
        ("gather_waits", "check_gather_and_free", "a gather that returns at once"),
        ("sum_instead_of_mean", "check_reduce_gradients", "That is the sum over the ranks"),
        ("all_reduces_gradients", "check_reduce_gradients", "no rank needs the others' pieces of the gradient"),
        ("skips_where_nothing_is_there", "check_reduce_gradients", "A rank without a gradient sends zeros"),
        ("keeps_whole_gradients", "check_reduce_gradients", "set .grad to None"),
        ("reduce_waits", "check_reduce_gradients", "one that waits for a late rank"),
        ("decay_in_the_gradient", "check_adam_step", "it is not added to the gradient"),
        ("moments_without_correction", "check_adam_step", "are m and v corrected"),
        ("no_master_weights", "check_adam_step", "update the float32 master"),
        ("drops_nothing", "check_FullyShard", "Drop a block after each use"),
        ("forgets_to_gather_in_backward", "check_FullyShard", "in backward too"),
        ("reduces_after_the_first_use", "check_FullyShard", "Reduce only what has gradients"),
        ("finish_reduces_nothing", "check_FullyShard", "finish reduces what is left"),
        ("gathers_when_asked", "check_Prefetching", "Before `use` returns"),
        ("ahead_in_forward_alone", "check_Prefetching", "place - 1 in backward"),
        ("everything_ahead", "check_Prefetching", "and no other"),
        ("waits_for_the_next_too", "check_Prefetching", "only when it is used"),
        ("clips_by_its_own_norm", "check_clip_gradients", "That is the norm of a piece"),
        ("adds_up_norms", "check_clip_gradients", "Their squares do"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab07", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert said.startswith("CheckFailed") and cause in said
