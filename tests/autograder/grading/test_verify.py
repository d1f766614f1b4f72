"""A bank whose answers do not get what they declare is reported."""

import time
from dataclasses import replace

import pytest
from tiny_lab import CHECKS as TINY_CHECKS
from tiny_lab import NAME, make_course, needs_jail
from typer.testing import CliRunner

from autograder.cli import app
from autograder.grading import verify as bank
from autograder.grading.reach import reach
from autograder.grading.verify import (
    Case,
    Finding,
    _problems,
    cases,
    is_proven,
    note_proven,
    sample,
    unlike_draws,
    verify,
)
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
    told = Finding(case, report(Outcome.PASSED, Outcome.WRONG), ["got 1 instead of 0"], 2).describe()
    assert told == "lab09 wrong/adds, inputs drawn with --seed 1:\n  got 1 instead of 0\n  check_1: Sum it."


def drawn(case: Case, seed: int, *outcomes: Outcome) -> Finding:
    return Finding(case, report(*outcomes).model_copy(update={"seed": seed}), [], len(outcomes))


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
        return Finding(case, report(Outcome.WRONG), ["nothing to keep"], 1)

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


ANSWERS = {
    "wrong_total": "# score: 2\n# The sum is not taken.\n\n# %% total\ndef total(tensor):\n    return tensor\n",
    "wrong_mean": "# score: 3\n# The sum is no mean.\n\n# %% mean\ndef mean(tensor):\n    return tensor\n",
    "mean_by_total": (
        "# score: 2\n# Both, by a function of its own.\n\n# %% total\ndef scaled(tensor):\n    return tensor * 3\n\n\n"
        "def total(tensor):\n    return scaled(tensor)\n"
    ),
    "reaches_out": (
        "# score: 0\n# Replaces what the other one calls.\n\n# %% total\ndef total(tensor):\n    return tensor\n\n\n"
        "dist.all_reduce = lambda tensor: None\n"
    ),
    "hangs": (
        "# score: 2\n# Rank 0 waits for ever.\n\n# %% total\ndef total(tensor):\n    if dist.get_rank() == 0:\n"
        "        dist.recv(tensor, 1)\n    return tensor\n"
    ),
}


def ends(finding):
    """How every check ended; which rank is named first, when several fail, is a matter of chance."""
    return [(check.name, check.outcome, check.earned) for check in finding.report.checks]


@needs_jail
def test_by_reach_every_check_of_every_answer_ends_as_in_the_full_matrix(tmp_path, monkeypatch):
    root = make_course(tmp_path)
    with open(root / "nbgrader_config.py", "a") as config:
        config.write("\nc.Grade.call_s = 5\n")
    folder = root / "solutions" / NAME / "wrong"
    folder.mkdir()
    for name, text in ANSWERS.items():
        (folder / f"{name}.py").write_text(text)
    known = cases(root, NAME)
    monkeypatch.setattr(bank, "is_proven", lambda *_: True)
    full, some = (
        {one.case.name: one for one in verify(root, known, jobs=2, seed=5, by_reach=by_reach)}
        for by_reach in (False, True)
    )
    assert {name: ends(one) for name, one in full.items()} == {name: ends(one) for name, one in some.items()}
    assert {one.num_judged for one in full.values()} == {3}
    assert {name: one.num_judged for name, one in some.items()} == {
        **{"solution": 3, "untouched": 3, "wrong/wrong_total": 2, "wrong/wrong_mean": 1, "wrong/mean_by_total": 2},
        **{"wrong/reaches_out": 3, "wrong/hangs": 3},
    }
    monkeypatch.setattr(bank, "_judge", None)  # nothing is judged again
    good = {name for name, one in some.items() if not one.problems}
    assert "wrong/wrong_total" in good
    again = list(verify(root, [one.case for name, one in some.items() if name in good], by_reach=True, use_kept=True))
    assert all(one.is_kept for one in again) and {one.case.name for one in again} == good
    with pytest.raises(TypeError):  # of a part of the checks, the full matrix keeps nothing
        list(verify(root, [some["wrong/wrong_mean"].case], use_kept=True))


def test_reach_is_enough_only_while_the_checks_are_as_they_were_proven(tmp_path):
    root = make_course(tmp_path)
    check = CheckResult(name="check", cell="check_total", promise="It holds.", points=5, outcome=Outcome.PASSED)
    report = Report(checks=[check], tier="none", seed=1, duration_s=0)
    findings = [Finding(case, report, [], num_judged=1) for case in cases(root, NAME)]
    for missing in (
        findings[1:],  # an answer was not judged
        [replace(findings[0], problems=["it got 4 points"]), *findings[1:]],
        [*findings[:-1], replace(findings[-1], num_judged=0)],  # it was judged by reach itself
    ):
        note_proven(root, missing)
        assert not is_proven(root, NAME)
    note_proven(root, findings)
    assert is_proven(root, NAME)
    checks = root / "solutions" / NAME / "checks.py"
    checks.write_text(checks.read_text() + "\n")
    assert not is_proven(root, NAME)


def test_of_a_lab_as_it_was_proven_a_sample_has_a_fifth_of_the_answers_that_say_most(tmp_path, monkeypatch):
    root = make_course(tmp_path)
    folder = root / "solutions" / NAME / "wrong"
    folder.mkdir()
    for name in ("broad", "cheat_broad", "narrow", "other"):
        (folder / f"{name}.py").write_text(WRONG.format(score=1, hint="sum"))
    failed = {"wrong/broad": "ab", "wrong/cheat_broad": "ab", "wrong/narrow": "a", "wrong/other": "b"}
    findings = [
        Finding(case, report(*(failing(case.name, failed, name) for name in "ab")), [], num_judged=2)
        for case in cases(root, NAME)
    ]

    def sampled(commit):
        monkeypatch.setattr(bank, "commit_seed", lambda _: commit)
        return {case.name for case in sample(root, cases(root, NAME))}

    everything, always = {case.name for case in cases(root, NAME)}, {"solution", "untouched"}
    fifths = [always | {name} for name in ("wrong/cheat_broad", "wrong/narrow", "wrong/other")]
    assert sampled(0) == everything
    note_proven(root, findings)
    assert [sampled(commit) for commit in range(5, 8)] == fifths
    (folder / "other.py").write_text(WRONG.format(score=2, hint="sum"))
    assert sampled(0) == everything
    by_reach = [replace(finding, num_judged=1) for finding in findings]
    note_proven(root, by_reach)  # enough, for the checks are proven
    assert [sampled(commit) for commit in range(5, 8)] == fifths


def failing(answer, failed, check):
    return Outcome.WRONG if check in failed.get(answer, "") else Outcome.PASSED


CELLS = {
    "setup": "import torch\nSCALE = 2",
    "a": "def a(x):\n    return x",
    "b": "def b(x):\n    return SCALE * a(x)",
    "c": "def c(): 1",
}
CHECKS = """
from autograder.checks import points

NEEDS = ["check_a"]


def on_rank(student, x):
    return student.a(x)


def on_any(student, name):
    return getattr(student, name)()


@points(1, cell="a")
def check_a(student, rng):
    "It uses no b."
    student.run(on_rank, 1, world_size=1)


@points(1, cell="b")
def check_b(student, rng):
    "A docstring about c."
    student.run(lambda student: student.b(1), world_size=1)


@points(1, cell="c", needs=NEEDS)
def check_c(student, rng):
    "It needs check_a."
    student.run(lambda student: student.c(), world_size=1)


@points(1, cell="d")
def check_any(student, rng):
    "Nobody knows."
    student.run(on_any, "c".lower(), world_size=1)


@points(1, cell="d")
def check_none(student, rng):
    "It looks at nothing."
"""
ALL = {"check_a", "check_b", "check_c", "check_any", "check_none"}


@pytest.mark.parametrize(
    ("changes", "reached"),
    [
        ({"a": "def a(x):\n    return 3"}, {"check_a", "check_b", "check_c", "check_any"}),
        ({"b": "def b(x):\n    return 3"}, {"check_b", "check_any"}),
        ({"c": "def c(): return 2"}, {"check_c", "check_any"}),
        ({"setup": "import torch\nSCALE = 3"}, {"check_b", "check_any"}),
        ({"b": "import torch\n\ndef b(x):\n    return 3"}, {"check_b", "check_any"}),
        ({"c": "def c(): 1\ndef a(x): return 7"}, {"check_a", "check_b", "check_c", "check_any"}),
        ({"c": "def c():\n    global a\n    a = 3"}, {"check_a", "check_b", "check_c", "check_any"}),
        ({"c": "def c(): 1\ntorch.add = c"}, None),
        ({"c": "torch.manual_seed(1)\ndef c(): 1"}, None),
        ({"c": "def c(x=print()): 1"}, None),
        ({"c": "@torch.compile\ndef c(): 1"}, None),
        ({"c": "class c:\n    torch.manual_seed(1)"}, None),
        ({"c": "for c in 'ab': pass"}, None),
        ({"c": "from torch import *"}, None),
        ({"c": "def __getattr__(name): return 1"}, None),
        ({"c": "def c(:"}, None),
        ({"more": "def c(): 3"}, {"check_c", "check_any"}),
    ],
)
def test_a_change_reaches_the_checks_that_can_notice_it(changes, reached):
    assert reach(CHECKS, ALL, list(CELLS.items()), list((CELLS | changes).items())) == reached


def test_a_cell_that_finds_names_dynamically_leaves_a_doubt():
    cells = CELLS | {"b": "def b(x):\n    return globals()['a'.lower()](x)"}
    assert reach(CHECKS, ALL, list(cells.items()), list((cells | {"c": "def c(): 2"}).items())) is None


def test_checks_that_are_made_in_another_way_leave_a_doubt():
    changed = list((CELLS | {"c": "def c(): 2"}).items())
    assert reach(CHECKS, ALL | {"check_made[1]"}, list(CELLS.items()), changed) is None
