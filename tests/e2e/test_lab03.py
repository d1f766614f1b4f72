"""Lab 3's open checks as a student runs them, and the known classes by which a student's test is graded."""

import importlib.util
import sys
import types

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells
from autograder.checks import Outcome, StudentFailed

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab03"
SOLUTION = solution_cells(LAB / "lab03.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab03", tmp_path_factory.mktemp("lab03"), SOLUTION)


@pytest.fixture(scope="module")
def checks():
    """The hidden checks as a module."""
    spec = importlib.util.spec_from_file_location("lab03_checks", LAB / "checks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_open_checks_pass_with_the_solution_and_show_a_picture_each(solved):
    assert failures(solved) == {}
    checks = {name: outputs for name, outputs in solved.items() if name.startswith("check_")}
    assert len(checks) == 9
    for name, outputs in checks.items():
        (shown,) = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
        if name == "check_make_buckets":  # which runs nothing
            assert shown.startswith("Stacked bars,") and "computed" in shown
        else:
            assert shown.startswith("Timeline (") and "emulated" in shown
    assert "largest difference of a gradient 0.0e+00" in solved["against_torch"][-1].text


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("sends_after_backward", "check_overlap", "the first all-reduce during backward"),
        ("waits_in_the_hook", "check_overlap", "a call in the hook waits"),
        ("never_sends_incomplete_buckets", "check_unused", "the buckets that have not left"),
        ("counts_gradients_inside_no_sync", "check_no_sync", "neither sends nor counts"),
        ("goes_on_with_old_counts", "check_overlap", "all counts begin anew"),
        ("sends_one_bucket_in_a_hook", "check_unused", "goes on sending while"),
        ("never_sends_early_after_no_sync", "check_no_sync", "those of a new step"),
        ("flat_means_stay_behind", "check_average_flat", "never came back into grad"),
        ("test_that_always_fails", "check_test_data_parallel", "keeps every promise"),
        ("forgets_buffers", "check_broadcast_state", "Parameters and buffers"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = message("lab03", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check)
    assert said.startswith("CheckFailed") and cause in said


class Crowded:
    """A student whose test is right, on a machine on which only runs of so many classes are done in time."""

    def __init__(self, checks, most):
        self.checks, self.most = checks, most

    def emulated(self, on_rank, num_classes, **options):
        if num_classes > self.most:
            raise StudentFailed(Outcome.HUNG, "rank 2 waits", may_be_external=True)
        (serve,) = options["each"][2]
        verdicts = [one in self.checks.RIGHT.values() for one in serve.args[0]]
        return types.SimpleNamespace(values=[verdicts] * 2)


def test_classes_that_took_too_long_together_are_judged_alone(checks):
    classes = [*checks.RIGHT.values(), checks.SILENT]
    assert checks.passing(Crowded(checks, most=1), classes) == list(checks.RIGHT.values())


def test_a_time_out_is_no_verdict(checks):
    with pytest.raises(StudentFailed) as caught:
        checks.passing(Crowded(checks, most=0), list(checks.RIGHT.values()))
    assert caught.value.outcome is Outcome.TIME_LIMIT and caught.value.may_be_external


def test_known_classes_are_all_different(checks):
    assert len(checks.RIGHT) == 3 and len(checks.WRONG) == 10
    assert len({*checks.RIGHT.values(), checks.SILENT, *checks.WRONG.values()}) == 14


def test_buckets_of_the_judge_are_those_of_the_docstring(checks):
    spec = [([1], "float32", True), ([2], "float32", True), ([1], "float32", True), ([1], "float32", True)]
    assert checks.places_of_buckets(spec, 12) == [[3, 2], [1, 0]]
    assert checks.places_of_buckets(spec, 4) == [[3], [2], [1], [0]]
