"""A bank whose answers do not get what they declare is reported."""

import time

import pytest
from tiny_lab import CHECKS as TINY_CHECKS
from tiny_lab import NAME, make_course, needs_jail
from typer.testing import CliRunner

from autograder.cli import app
from autograder.grading import verify as bank
from autograder.grading.verify import Case, GradedCase, _problems, cases, sample, unlike_draws, verify
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
    told = GradedCase(case, report(Outcome.PASSED, Outcome.WRONG), ["got 1 instead of 0"]).describe()
    assert told == "lab09 wrong/adds, inputs drawn with --seed 1:\n  got 1 instead of 0\n  check_1: Sum it."


def drawn(case: Case, seed: int, *outcomes: Outcome) -> GradedCase:
    return GradedCase(case, report(*outcomes).model_copy(update={"seed": seed}), [])


def test_an_answer_whose_points_depend_on_the_draw_is_described_with_the_checks_and_seeds():
    steady, unlike = Case("lab09", "right/steady", {}, None), Case("lab09", "wrong/by_chance", {}, 1)
    passed, wrong = Outcome.PASSED, Outcome.WRONG
    findings = [
        *(drawn(steady, seed, passed, wrong) for seed in (5, 6, 7)),
        *(drawn(unlike, seed, passed, outcome) for seed, outcome in ((5, passed), (6, wrong), (7, passed))),
    ]
    assert unlike_draws(findings) == [
        "lab09 wrong/by_chance got 2 with --seed 5, 7; 1 with --seed 6:\n  check_1 1 with --seed 5, 7; 0 with --seed 6"
    ]


def test_points_that_another_check_makes_up_for_are_described_too():
    findings = [
        drawn(Case("lab09", "wrong/turns", {}, 1), 5, Outcome.PASSED, Outcome.WRONG),
        drawn(Case("lab09", "wrong/turns", {}, 1), 6, Outcome.WRONG, Outcome.PASSED),
    ]
    (described,) = unlike_draws(findings)
    assert described.startswith("lab09 wrong/turns got 1 with --seed 5, 6:\n  check_0 ")


def test_an_answer_that_declares_a_range_may_differ():
    slow = Case("project9", "wrong/slow", {}, 1, most_score=2)
    assert unlike_draws([drawn(slow, 5, Outcome.PASSED), drawn(slow, 6, Outcome.WRONG)]) == []


def test_who_looks_no_further_waits_for_no_other_answer(monkeypatch, tmp_path):
    tried = []

    def grade(root, case, seed):
        tried.append(case)
        time.sleep(0.01)  # what grading takes
        return GradedCase(case, report(Outcome.WRONG), ["nothing to keep"])

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


BY_CHANCE = """

@points(1, cell="check_mean")
def check_by_chance(student, rng):
    "A coin decides."
    (value,) = student.run(mean_on_rank, torch.ones(1), world_size=1)
    expect_close(value, torch.ones(1) + rng.initial_seed() % 2, "the mean")
"""


@needs_jail
def test_verify_fails_where_a_draw_decides_and_says_which(tmp_path, monkeypatch):
    checks = TINY_CHECKS.replace('points(2, cell="check_mean")', 'points(1, cell="check_mean")') + BY_CHANCE
    monkeypatch.chdir(make_course(tmp_path, checks=checks))
    done = CliRunner().invoke(app, ["verify", NAME, "--seeds", "2", "--seed", "1"])
    assert done.exit_code == 1
    assert "check_by_chance 1 with --seed 1; 0 with --seed 2" in done.output
    assert "1 of 2 answers got points that depend on the draw." in done.output


@needs_jail
def test_what_got_its_score_is_not_judged_again_until_something_changes(tmp_path, monkeypatch):
    root = make_course(tmp_path)
    folder = root / "solutions" / NAME / "wrong"
    folder.mkdir()
    (folder / "honest.py").write_text(WRONG.format(score=2, hint="sum over"))
    (folder / "too_generous.py").write_text(WRONG.format(score=3, hint="sum over"))
    list(verify(root, cases(root, NAME), jobs=2, seed=5))
    judged = []

    def grade(root, case, seed):
        judged.append(case.name)
        return GradedCase(case, report(Outcome.WRONG), ["nothing to keep"])

    monkeypatch.setattr(bank, "try_case", grade)

    def judged_again():
        judged.clear()
        findings = list(verify(root, cases(root, NAME), jobs=1, use_kept=True))
        assert {one.case.name for one in findings if not one.is_kept} == set(judged)
        return set(judged)

    assert judged_again() == {"wrong/too_generous"}
    (folder / "honest.py").write_text(WRONG.format(score=1, hint="sum over"))
    assert judged_again() == {"wrong/honest", "wrong/too_generous"}
    checks = root / "solutions" / NAME / "checks.py"
    checks.write_text(checks.read_text() + "\n")
    assert judged_again() == {"solution", "untouched", "wrong/honest", "wrong/too_generous"}


def test_a_sample_has_the_solution_and_a_part_of_the_answers_that_differs_between_commits(tmp_path, monkeypatch):
    known = [
        Case(lab, name, {}, 0)
        for lab in ("lab08", "lab09")
        for name in ("solution", "untouched", *(f"wrong/{number}" for number in range(10)))
    ]

    def sampled(commit):
        monkeypatch.setattr(bank, "commit_seed", lambda _: commit)
        return sample(tmp_path, known, 4)

    samples = [sampled(commit) for commit in range(30, 33)]
    for chosen in samples:
        assert [case for case in known if case in chosen] == chosen
        for lab in ("lab08", "lab09"):
            names = [case.name for case in chosen if case.lab == lab]
            assert names[:2] == ["solution", "untouched"] and 3 <= len(names) - 2 <= 4
    assert {case.name for chosen in samples for case in chosen} == {case.name for case in known}
    assert sampled(33) == samples[0]
    assert sample(tmp_path, known[:12], 10) == known[:12]
    assert sample(tmp_path, known[:2], 4) == known[:2]
