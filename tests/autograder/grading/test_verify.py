"""A bank whose answers do not get what they declare is reported."""

import time

import pytest
from tiny_lab import NAME, make_course, needs_jail

from autograder.grading.verify import Case, Finding, _problems, cases, verify
from autograder.judging.report import CheckResult, Outcome, Report

WRONG = """\
# score: {score}
# hint: {hint}
# Returns its own values.

# %% total
def total(tensor):
    return tensor
"""
RIGHT = """\
# %% total
def total(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return sum(parts)
"""


def report(*outcomes: Outcome) -> Report:
    checks = [
        CheckResult(name=f"check_{number}", cell="check", promise="It.", points=1, outcome=outcome, message="Sum it.")
        for number, outcome in enumerate(outcomes)
    ]
    return Report(checks=checks, tier="namespaces", seed=1, duration_s=1)


def problems(score: float | None, *outcomes: Outcome, hints: tuple[str, ...] = ()) -> str:
    return "; ".join(_problems(Case("lab", "answer", {}, score, hints), report(*outcomes)))


def test_an_answer_that_gets_what_it_declares_is_no_problem():
    assert problems(1, Outcome.PASSED, Outcome.WRONG, hints=("sum",)) == ""
    assert problems(None, Outcome.PASSED, Outcome.PASSED) == ""


@pytest.mark.parametrize(
    ("score", "outcomes", "said"),
    [
        (0, [Outcome.PASSED, Outcome.WRONG], "got 1 instead of 0; not passed: check_1 (wrong)"),
        (None, [Outcome.PASSED, Outcome.CRASHED], "got 1 instead of 2; not passed: check_1 (crashed)"),
        (0, [Outcome.FAULT], "check_0 broke"),
        (0, [], "got 0 instead of 0"),
    ],
)
def test_an_answer_that_gets_something_else_is_told(score, outcomes, said):
    assert said in problems(score, *outcomes)


@pytest.mark.parametrize(("most_score", "said"), [(None, "got 2 instead of 1;"), (1.5, "instead of 1 to 1.5"), (2, "")])
def test_a_slow_answer_may_declare_a_range(most_score, said):
    found = "; ".join(_problems(Case("lab", "answer", {}, 1, (), most_score), report(Outcome.PASSED, Outcome.PASSED)))
    assert said in found and bool(said) == bool(found)


def test_feedback_without_the_hint_is_told():
    assert problems(0, Outcome.WRONG, hints=("mean",)) == "its feedback does not say 'mean'"


def test_a_finding_tells_all_that_is_needed_to_mend_it():
    case = Case("lab09", "wrong/adds", {}, 0)
    told = Finding(case, report(Outcome.PASSED, Outcome.WRONG), ["got 1 instead of 0"]).told()
    assert told == "lab09 wrong/adds, inputs drawn with --seed 1:\n  got 1 instead of 0\n  check_1: Sum it."


def test_who_looks_no_further_waits_for_no_other_answer(monkeypatch, tmp_path):
    tried = []

    def grade(root, case, seed):
        tried.append(case)
        time.sleep(0.01)  # what grading takes

    monkeypatch.setattr("autograder.grading.verify.try_case", grade)
    next(findings := verify(tmp_path, [Case("lab09", str(number), {}, 0) for number in range(500)], jobs=1))
    findings.close()
    assert len(tried) < 500


@needs_jail
def test_one_wrong_declaration_in_a_bank_is_found(tmp_path):
    root = make_course(tmp_path)
    folder = root / "solutions" / NAME
    for kind in ("right", "wrong"):
        (folder / kind).mkdir()
    (folder / "wrong" / "honest.py").write_text(WRONG.format(score=2, hint="sum over"))
    (folder / "wrong" / "too_generous.py").write_text(WRONG.format(score=3, hint="another word"))
    (folder / "right" / "gathered.py").write_text(RIGHT)
    known = cases(root, NAME)
    assert [case.name for case in known] == [
        "solution",
        "untouched",
        "right/gathered",
        "wrong/honest",
        "wrong/too_generous",
    ]
    findings = list(verify(root, known, jobs=2, seed=5))
    assert {finding.report.seed for finding in findings} == {5}
    found = {finding.case.name: "; ".join(finding.problems) for finding in findings}
    assert "got 2 instead of 3" in (bad := found.pop("wrong/too_generous")) and "'another word'" in bad
    assert set(found.values()) == {""}
