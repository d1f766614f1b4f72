"""Whatever is handed in, there is a verdict and never a fault: spoilt notebooks, from file to judge.

A thousand of them go through nbgrader and the real judge in `make bench`.
"""

import json
import os
from copy import deepcopy

import nbformat
import pytest
from fuzzed import submissions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course

from autograder.course import open_course
from autograder.grading import engines
from autograder.grading import lab as labs
from autograder.grading.classroom import enter
from autograder.grading.lab import Lab
from autograder.judging.report import CheckResult, Outcome, Report
from autograder.submissions.submission import read_submission

pytestmark = pytest.mark.filterwarnings("ignore:::nbformat")  # about ids
POINTS = {"check_total": 3, "check_mean": 2}


def stand_in(request, granted):
    """A judge that compiles what it gets, as a rank would, and finds everything right."""
    request.model_dump_json().encode()
    for name, source in request.cells:
        assert isinstance(name, str) and isinstance(source, str)
        try:
            compile(source, name, "exec")
        except Exception:  # a rank tells this to the student
            continue
    checks = [
        CheckResult(name=f"check_of_{cell}", cell=cell, promise="It holds.", points=points, outcome=Outcome.PASSED)
        for cell, points in POINTS.items()
    ]
    return Report(checks=checks, tier="none", seed=1, duration_s=0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "judge", stand_in)
        patch.setattr(labs, "engine_sha256", lambda: "")  # it reads every file of the engine
        patch.setattr(os, "fsync", lambda fd: None)
        yield Lab(open_course(make_course(tmp_path_factory.mktemp("fuzzed"))), NAME)


@pytest.fixture(scope="module")
def api(lab):
    """nbgrader over the course, with the lab released."""
    api = NbGraderAPI(coursedir=lab.coursedir, config=lab.coursedir.config)
    assert api.generate_assignment(NAME, force=True)["success"]
    return api


@pytest.fixture(scope="module")
def whole(lab):
    """A submission that earns all points, as JSON."""
    return json.loads(nbformat.writes(answered(deepcopy(lab.release), {"total": TOTAL, "mean": MEAN})))


def verdict_on(lab, content):
    path = lab.submitted_file("anyone")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    judged = lab.judge("anyone")
    assert judged.fault == ""
    assert bool(judged.report) != bool(judged.malformed)
    if judged.malformed:
        assert judged.malformed.endswith((".", "?")) and len(judged.malformed) < 500
    else:
        nbformat.writes(read_submission(path, lab.release).notebook).encode()  # as nbgrader does with it
    assert lab.kept("anyone") == judged
    return judged


@settings(deadline=None, derandomize=True, max_examples=200, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_file_gets_a_verdict(lab, whole, data):
    verdict_on(lab, data.draw(submissions(whole)))


@settings(deadline=None, derandomize=True, max_examples=20, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_verdict_reaches_the_gradebook_and_the_student(lab, api, whole, data):
    """By nbgrader, which reads the file again."""
    judged = verdict_on(lab, data.draw(submissions(whole)))
    entered = enter(lab, "anyone", judged)
    assert (entered.fault, entered.is_entered) == ("", True)
    assert api.generate_feedback(NAME, "anyone", force=True)["success"]
    with Gradebook(f"sqlite:///{lab.coursedir.root}/gradebook.db") as gradebook:
        assert gradebook.find_submission(NAME, "anyone").score == judged.score
