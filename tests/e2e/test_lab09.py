"""Lab 9's open checks as a student runs them: with the solution, and with the usual mistakes."""

from typing import Any

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells
from autograder.authoring.scripts import parse

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab09"
SOLUTION = solution_cells(LAB / "lab09.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab09", tmp_path_factory.mktemp("lab09"), SOLUTION)


def shown(outputs):
    return [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 7
    for name in ("check_gpipe", "check_one_f_one_b", "check_interleaved", "check_run_schedule"):
        (picture,) = shown(solved[name])
        assert picture.startswith("Timeline (")
    picture, table = shown(solved["check_shortest"])
    rows = [line.split()[-3:] for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert picture.startswith("Timeline (") and len(rows) == 6 and all(row[1] == row[2] for row in rows)


def test_the_last_cell_compares_the_schedules(solved):
    (table,) = shown(solved["all_schedules"])
    rows = [line.split() for line in table.splitlines() if line.startswith(("GPipe", "1F1B", "interleaved"))]
    assert [row[1] for row in rows] == ["21.00", "21.00", "19.50"] and len({row[-1] for row in rows}) == 1
    for _, on_paper, on_ranks, *_ in rows:
        assert float(on_paper) <= float(on_ranks) < 1.01 * float(on_paper)
    text = printed(solved["all_schedules"])
    assert "GPipe on 3 ranks, if sends wait: it ends" in text and "a circle, [0, 1, 2]" in text


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("backward_in_another_order_on_odd_ranks", "check_gpipe", "in the same order in F, and the same in B"),
        ("all_forward_first", "check_one_f_one_b", "then F and B take turns"),
        ("one_fewer_ahead", "check_one_f_one_b", "too few F ahead"),
        ("always_as_many_ahead", "check_one_f_one_b", "actions"),
        ("one_stage_after_the_other", "check_interleaved", "in flight"),
        ("last_round_is_short", "check_interleaved", "with 3 ranks, 5 micro-batches and 2 chunks"),
        ("circles_of_two", "check_find_circle", "[0, 1, 2] in case 1"),
        ("circle_with_those_behind", "check_find_circle", "nobody waits for rank 0"),
        ("looks_at_first_transfers", "check_find_circle", "First play what can move"),
        ("sends_wait", "check_run_schedule", "wait for each other"),
        ("no_tags", "check_run_schedule", "bytes came for tensors of"),
        ("scales_the_gradients", "check_run_schedule", "Do not scale what is in grad"),
        ("mean_of_the_means", "check_run_schedule", "over the number of all targets"),
        ("clears_the_gradients", "check_run_schedule", "it has the sum of earlier calls in it"),
        ("fills_up_to_the_mean", "check_balance", "not always best"),
        ("in_flight_until_its_input_gradient", "check_shortest", "until its W is done"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab09", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said


def test_each_scored_case_has_a_schedule_as_short_as_the_bound_and_is_not_in_the_notebook():
    source = (LAB / "checks.py").read_text(encoding="utf-8")
    checks: dict[str, Any] = {"__name__": "checks_of_lab09", "__file__": str(LAB / "checks.py")}
    exec(source, checks)
    names = {}
    for cell in parse(LAB / "lab09.py").cells:
        if cell.kind == "code" and not cell.title.startswith(("check_", "all_")):
            exec(SOLUTION.get(cell.title, cell.source), names)
    (shown,) = (cell.source for cell in parse(LAB / "lab09.py").cells if cell.title == "check_shortest")
    for num_ranks, num, most, times in checks["ATTAINED"]:
        case = checks["Case"](num_ranks, num, most, dict(zip("FIW", map(float, times), strict=True)))
        schedule = [[checks["Act"](*one) for one in actions] for actions in names["shortest"](*case)]
        assert checks["play"](schedule, num_ranks, case.times, "").length == case.bound < case.length_of_1f1b
        assert f"({num_ranks}, {num}, {most}, {times}" not in shown
