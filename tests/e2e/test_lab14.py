"""Lab 14's open checks as a student runs them: with the solution, and with the usual mistakes."""

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab14"
SOLUTION = solution_cells(LAB / "lab14.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab14", tmp_path_factory.mktemp("lab14"), SOLUTION)


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 8
    assert "whichever of seven points is wrong" in printed(solved["check_fitted_line"])


def test_this_machine_is_drawn_with_the_students_fits_and_its_runs_are_beside_predictions(solved):
    said = printed(solved["my_machine"])
    assert [line.split(":")[0] for line in said.splitlines()[1:]] == ["products", "passes", "links", "write"]
    (picture,) = [one.data["text/plain"] for one in solved["my_machine"] if "data" in one]
    assert picture.count("of the fit.") == 3
    (table,) = [one.data["text/plain"] for one in solved["held_out"] if "data" in one]
    assert len(table.splitlines()) == 2 + 4


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("means_of_the_times", "check_which_time", "never shorter"),
        ("spread_over_the_median", "check_which_time", "The median over the shortest"),
        ("least_squares", "check_fitted_line", "One point must not decide"),
        ("relative_least_squares", "check_fitted_line", "One point must not decide"),
        ("rate_without_a_floor", "check_fitted_line", "the floor at small sizes"),
        ("low_lines_win", "check_fitted_line", "One point must not decide"),
        ("latency_of_the_whole", "check_ring_link", "All 2 (n - 1) messages have a latency"),
        ("one_latency", "check_ring_link", "with its own latency"),
        ("one_rate_for_all_products", "check_alone", "the products most like it"),
        ("divides_by_no_distance", "check_alone", "at distance 0 from itself"),
        ("straight_between_the_sizes", "check_alone", "between the logarithms of the sizes"),
        ("passes_of_any_name", "check_alone", "Only the probes of this name count"),
        ("sums_in_place_of_means", "check_in_program", "by the number of operators"),
        ("overhead_of_the_smallest", "check_in_program", "beside a wrong one"),
        ("hides_the_all_reduce", "check_prediction", "and the gradients' all-reduce"),
        ("saves_parameters_alone", "check_prediction", "4 of each state of the optimizer"),
        ("error_at_what_it_has_seen", "check_left_out_error", "Fit all the others"),
        ("products_by_name", "check_predict", "With flops it is a product"),
        ("median_of_the_saves", "check_predict", "by the shortest times"),
        ("links_among_the_ranks_of_the_program", "check_predict", "then the link"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab14", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said
