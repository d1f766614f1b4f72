"""Lab 13a's open checks as a student runs them, and answers judged, all on real Ray clusters."""

import nbformat
import psutil
import pytest
from executed import failures, lab_outputs
from needs import give_up
from repository import ROOT
from tiny_lab import needs_jail

from autograder.authoring.extra_packages import needs_of, refuse_absent
from autograder.authoring.known_answers import solution_cells
from autograder.grading.verify import cases, try_case, verify

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


def processes_of_ray():
    """The processes of Ray's daemons and workers on this machine, also those in a sandbox."""
    found = set()
    for one in psutil.process_iter(["name", "cmdline"]):
        words = " ".join([one.info["name"] or "", *(one.info["cmdline"] or [])[:3]])
        if any(name in words for name in ("raylet", "gcs_server", "ray::", "ray/dashboard")):
            found.add(one.pid)
    return found


def test_the_lab_says_what_it_needs():
    assert NEEDS == ["ray.train", "ray.tune"]


@pytest.mark.ray
@pytest.mark.nightly("starts 22 workers")
@pytest.mark.timeout(1200)
def test_open_checks_pass_with_the_solution(ray, tmp_path):
    found = lab_outputs("lab13a", tmp_path, solution_cells(LAB / "lab13a.py"))
    assert failures(found) == {}
    assert len([name for name in found if name.startswith("check_")]) == 5
    for event in ("worker 1 killed at step 4", "node left at step 7", "node came back at step 10"):
        assert event in printed(found["check_trainer"])
    assert "4 workers" in printed(found["live_table"])


@needs_jail
@pytest.mark.ray
def test_answers_get_what_they_declare(ray):
    names = ("solution", "wrong/fixed_size", "wrong/highest_loss_is_best")
    some = [one for one in cases(ROOT, "lab13a") if one.name in names]
    findings = list(verify(ROOT, some, seed=13))
    assert len(findings) == len(names)
    assert not any(one.problems for one in findings), "\n".join(one.describe() for one in findings)


@needs_jail
@pytest.mark.ray
@pytest.mark.nightly("judges eight submissions on real clusters")
@pytest.mark.timeout(7200)
def test_a_class_of_eight_leaves_no_process(ray):
    """No check shuts its cluster down: the end of the sandbox does."""
    before = processes_of_ray()
    names = ("solution", "wrong/never_starts_again", "wrong/cheat_trains_in_the_driver", "wrong/cheat_writes_results")
    some = [one for one in cases(ROOT, "lab13a") if one.name in names]
    findings = [try_case(ROOT, one) for one in (*some, *some)]
    assert not any(one.problems for one in findings), "\n".join(one.describe() for one in findings)
    assert processes_of_ray() - before == set()
