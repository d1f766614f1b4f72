"""Lab 15's open checks as a student runs them: with the solution, and with the usual mistakes."""

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab15"
SOLUTION = solution_cells(LAB / "lab15.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab15", tmp_path_factory.mktemp("lab15"), SOLUTION)


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 6
    assert "the gradient is 34% off" in printed(solved["check_contrastive_backward"])


def test_every_program_is_in_the_table_with_what_is_said_of_it(solved):
    (table,) = [one.data["text/plain"] for one in solved["check_name_fault"] if "data" in one]
    rows = table.splitlines()[2:]
    assert len(rows) == 10 + 9
    assert all(row.endswith("yes") for row in rows)
    assert "10 faults named, 9 healthy programs cleared" in printed(solved["check_name_fault"])


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("hash_of_the_bytes", "check_linear_sketch", "Products with fixed vectors add up"),
        ("first_elements", "check_linear_sketch", "Each element needs its own 16 signs"),
        ("unseeded_signs", "check_linear_sketch", "a generator of your own"),
        ("seeds_torch", "check_linear_sketch", "changes the training it watches"),
        ("in_the_order_of_memory", "check_linear_sketch", "not on how they lie in memory"),
        ("same_signs_in_each_block", "check_linear_sketch", "begin anew in each block"),
        ("compares_all_shards", "check_first_difference", "Ranks 0 and 1 hold different shards"),
        ("exact_equality", "check_first_difference", "1e-7 is rounding"),
        ("never_looks_at_the_end", "check_first_difference", "After the last step"),
        ("always_healthy", "check_name_fault", "Expected: same_batch"),
        ("clipped_is_wrong", "check_name_fault", "program 'clipped'"),
        ("counts_the_calls", "check_name_fault", "program 'two halves'"),
        ("one_equal_batch_is_enough", "check_name_fault", "program 'one equal batch'"),
        ("nan_is_below_every_limit", "check_first_deviation", "nan > limit is False"),
        ("tolerance_of_the_whole_run", "check_first_deviation", "In step 1 rounding is only 1e-6"),
        ("clips_by_local_norms", "check_clip_shards", "9 + 16 over the ranks, and 144 once"),
        ("always_scales", "check_clip_shards", "no change below max_norm"),
        ("gradient_in_part", "check_contrastive_backward", "from the losses of other ranks"),
        ("gathers_inputs", "check_contrastive_backward", "Send embeddings, not inputs"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab15", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said
