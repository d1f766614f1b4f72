"""Lab 13b's open checks as a student runs them: with the solution, and with the usual mistakes."""

import re

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab13b"
SOLUTION = solution_cells(LAB / "lab13b.py")


def test_open_checks_pass_with_the_solution_and_the_curves_agree(tmp_path):
    outputs = lab_outputs("lab13b", tmp_path, SOLUTION)
    assert failures(outputs) == {}
    assert len([name for name in outputs if name.startswith("check_")]) == 7
    (table,) = [one.data["text/plain"] for one in outputs["compared"] if one.output_type == "display_data"]
    rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()[2:]]
    off = {row[0].replace("a solution's", "yours"): float(row[3]) for row in rows}
    names = ["DDP, Gloo", "yours, Gloo", "yours, Gloo, fp16", "yours, MPI", "yours, Horovod", "Horovod's own"]
    assert [*off] == names  # the last three recorded where they are not installed
    assert {row[1] for row in rows if "Gloo" in row[0]} == {"here"}
    assert 0 < off.pop("yours, Gloo, fp16") < 0.05 and all(one < 1e-4 for one in off.values()), off


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("weights_alone", "check_broadcast_state", "state_dict() has the buffers too"),
        ("optimizer_stays", "check_broadcast_state", "the root's learning rate"),
        ("ready_anywhere", "check_agreed", "All ranks have c and b"),
        ("one_by_one", "check_fused_sum", "a new buffer where the next tensor does not fit"),
        ("sums_are_not_copied_back", "check_fused_sum", "with copy_"),
        ("sum_instead_of_mean", "check_DistributedOptimizer", "divide by the number of ranks"),
        ("halves_before_it_divides", "check_DistributedOptimizer", "65,504 is the largest float16"),
        ("zeros_for_the_unused", "check_DistributedOptimizer", "Weight decay has moved it"),
        ("commits_the_tensors_themselves", "check_run_elastic", "Copy what you commit"),
        ("never_goes_back", "check_run_elastic", "back to the commit after step 2"),
        ("outer_activities_too", "check_read_timeline", "innermost activities alone"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab13b", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said
