"""Lab 12's open checks as a student runs them, with the solution and with mistakes, and four answers judged."""

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells
from autograder.authoring.scripts import parse
from autograder.grading.verify import cases, try_case

LAB = ROOT / "solutions" / "lab12"
SOLUTION = solution_cells(LAB / "lab12.py")
CHECKS = [cell.title for cell in parse(LAB / "lab12.py").cells if cell.title.startswith("check_")]


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab12", tmp_path_factory.mktemp("lab12"), SOLUTION)


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.slow
def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 6
    assert "4 ranks, 2, 4: went on at step 8" in printed(solved["check_train"])
    assert "deadline: hung in a collective, ended" in printed(solved["check_deadline"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("uneven_shares", "check_share_of", "differ by one at most"),
        ("overwrites_the_old_one", "check_save_checkpoint", "delete nothing before the new checkpoint is whole"),
        ("leaves_what_did_not_fit", "check_save_checkpoint", "nothing is left of a save on a full disk"),
        ("keeps_all", "check_save_checkpoint", "two checkpoints, at most"),
        ("trusts_the_newest", "check_newest_whole", "Trust a file only if its digest"),
        ("looks_at_the_sizes", "check_newest_whole", "Trust a file only if its digest"),
        ("forgets_the_momentum", "check_load_checkpoint", "Put all slices together"),
        ("as_many_ranks_only", "check_load_checkpoint", "Put all slices together"),
        ("waits_for_ever", "check_deadline", "an end within a second in Python"),
        ("begins_anew", "check_train", "steps 8 to 11 after the last start"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab12", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said


@pytest.mark.parametrize("name", ["solution", "wrong/trusts_the_newest"])
def test_an_answer_gets_what_it_declares(name):
    """The whole bank is graded by `make project`."""
    (case,) = (one for one in cases(ROOT, "lab12") if one.name == name)
    finding = try_case(ROOT, case)
    assert not finding.problems, finding.describe()
