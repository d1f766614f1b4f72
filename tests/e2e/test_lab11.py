"""Lab 11's open checks as a student runs them: with the solution, and with the usual mistakes."""

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab11"
SOLUTION = solution_cells(LAB / "lab11.py")
AT_NIGHT = pytest.mark.nightly("a minute, for eleven runs of which another answer makes the same ones")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab11", tmp_path_factory.mktemp("lab11"), SOLUTION)


def shown(outputs):
    return [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 7
    assert "each gradient summed once" in printed(solved["check_accumulate"])


def test_every_planted_bottleneck_is_named_and_its_gain_known(solved):
    (table,) = shown(solved["check_find_bottleneck"])
    rows = [line.split() for line in table.splitlines()[2:]]
    assert len(rows) == 11
    assert all(row[0] == row[1] for row in rows)
    assert "find_bottleneck: 11 steps named, at most 2.1% off." in printed(solved["check_find_bottleneck"])


def test_the_report_has_the_numbers_of_its_program(solved):
    pictures = shown(solved["my_program"])
    (table,) = [one for one in pictures if one.startswith("Program 1234")]
    assert "14.2 ms  9.76 ms        4.41 ms" in table
    assert "Diagnosis(cause='no_overlap', rank=None, step_s=0.01156" in printed(solved["my_program"])


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("late_is_communication", "check_terms", "Rank 0 waits for rank 1"),
        ("adds_up_kinds", "check_terms", "The read is hidden by compute"),
        ("names_the_largest_term", "check_find_bottleneck", "the cause is the one that gains most"),
        pytest.param("always_a_bottleneck", "check_find_bottleneck", "None to be named", marks=AT_NIGHT),
        ("reads_in_the_loop", "check_read_ahead", "Start the next read before you hand out a batch"),
        ("reads_all_at_once", "check_read_ahead", "One batch ahead, no more"),
        ("saves_in_the_caller", "check_save_aside", "Write in a thread"),
        ("saves_without_a_copy", "check_save_aside", "Copy every tensor before you return"),
        ("mean_of_the_passes", "check_accumulate", "Weigh each pass by its rows"),
        ("sums_in_each_pass", "check_accumulate", "inside parallel.no_sync()"),
        ("stays_in_float32", "check_accumulate", "Use torch.autocast"),
        ("one_row_in_a_pass", "check_accumulate", "As few passes as possible"),
        ("sums_after_backward", "check_accumulate", "DDP then sums while its backward goes on"),
        ("one_by_one", "check_cut_into_buckets", "As in the example"),
        ("one_for_all", "check_cut_into_buckets", "As in the example"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab11", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said
