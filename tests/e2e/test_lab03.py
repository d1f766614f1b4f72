"""Lab 3's open checks as a student runs them, and the known classes by which a student's test is graded."""

import importlib.util
import sys

import pytest
from executed import errors, lab_outputs
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.lesson

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
    assert [name for name, outputs in solved.items() if errors(outputs)] == []
    checks = {name: outputs for name, outputs in solved.items() if name.startswith("check_")}
    assert len(checks) == 6
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
        ("sends_after_backward", "check_DataParallel", "the first all-reduce during backward"),
        ("test_that_always_fails", "check_test_data_parallel", "the test to let a right class pass"),
        ("forgets_buffers", "check_broadcast_state", "Parameters and buffers"),
    ],
)
def test_open_check_names_the_cause(tmp_path, answer, check, cause):
    wrong = read_answer(LAB / "wrong" / f"{answer}.py")
    (error,) = errors(lab_outputs("lab03", tmp_path, SOLUTION | wrong.cells)[check])
    assert error.ename == "CheckFailed" and cause in "\n".join(error.traceback)


def test_known_classes_are_all_different_and_say_what_they_are(checks):
    assert len(checks.RIGHT) == 3 and len(checks.WRONG) == 10
    sources = [*checks.RIGHT.values(), checks.SILENT, *checks.WRONG.values()]
    assert len(set(sources)) == len(sources)
    for source in sources:
        compile(source, "known class", "exec")


def test_a_change_that_changes_nothing_is_refused(checks):
    with pytest.raises(ValueError, match="stands there 0 times"):
        checks.changed(checks.IN_FINISH, "no such line", "")


def test_buckets_of_the_judge_are_those_of_the_docstring(checks):
    spec = [([1], "float32", True), ([2], "float32", True), ([1], "float32", True), ([1], "float32", True)]
    assert checks.buckets_of(spec, 12) == [[3, 2], [1, 0]]
    assert checks.buckets_of(spec, 4) == [[3], [2], [1], [0]]
