"""Lab 13a's open checks as a student runs them, and a right and a wrong answer judged, all on real Ray clusters."""

import nbformat
import pytest
from executed import errors, lab_outputs
from needs import give_up
from repository import ROOT
from tiny_lab import needs_jail

from autograder.authoring.known_answers import solution_cells
from autograder.authoring.needs import needs_of, refuse_absent
from autograder.grading.verify import cases, try_case

LAB = ROOT / "solutions" / "lab13a"
NEEDS = needs_of(nbformat.read(ROOT / "labs" / "lab13a" / "lab13a.ipynb", as_version=4))


@pytest.fixture(scope="module")
def ray():
    try:
        refuse_absent(NEEDS, "lab13a")
    except ValueError as absent:
        give_up("ray", str(absent))


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_the_lab_says_what_it_needs():
    assert NEEDS == ["ray.train", "ray.tune"]


@pytest.mark.ray
def test_open_checks_pass_with_the_solution(ray, tmp_path):
    found = lab_outputs("lab13a", tmp_path, solution_cells(LAB / "lab13a.py"))
    assert {name: errors(outputs) for name, outputs in found.items() if errors(outputs)} == {}
    assert len([name for name in found if name.startswith("check_")]) == 5
    assert "worker 1 killed at step 8" in printed(found["check_trainer"])
    assert "4 workers" in printed(found["live_table"])


@needs_jail
@pytest.mark.ray
@pytest.mark.parametrize("name", ["solution", "wrong/forgets_the_momentum"])
def test_an_answer_gets_what_it_declares(ray, name):
    """The whole bank is graded by `make project`."""
    (case,) = (one for one in cases(ROOT, "lab13a") if one.name == name)
    finding = try_case(ROOT, case)
    assert not finding.problems, finding.describe()
