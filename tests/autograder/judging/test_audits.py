"""What an audit adds to the feedback on a failed check: the student's own lines and fixed words, never points."""

import pytest
from tiny_lab import GIVEN, message, needs_jail, write_checks

from autograder.feedback import check_results
from autograder.judging.judge.audits import MOST_CLAIMS, finding_in
from autograder.judging.report import Outcome
from autograder.judging.request import JudgeRequest, judge
from worldsize.audit.cures import CURES

CELL = "<cell total>"
SOURCES = {CELL: "def total(tensor):\n    dist.all_reduce(tensor, async_op=True)  # <b>&amp;</b>\n    return tensor"}
RACE = ["race", CELL, 2]

CHECKS = '''
import torch
import torch.distributed as dist

from autograder.judging.checks.check import PartlyHeld, points
from worldsize.check import CheckFailed, expect_close


def on_rank(student, name):
    return getattr(student, name)(torch.ones(3))


def careless_on_rank(student):
    dist.all_reduce(torch.ones(3), async_op=True)
    return student.plain(torch.ones(3))


@points(2, cell="check_forgetful")
def check_forgetful(student, rng):
    """The sum."""
    student.emulated(on_rank, "forgetful", world_size=2)
    raise PartlyHeld(0.5, "a sum that is there", "one that may not be")


@points(1, cell="check_forgetful")
def check_forgetful_again(student, rng):
    """The sum, again."""
    student.run(on_rank, "forgetful", world_size=2)
    raise CheckFailed("a sum that is there", "one that may not be")


@points(1, cell="check_related")
def check_related(student, rng):
    """It fails by the same line."""
    student.run(on_rank, "forgetful", world_size=2)
    raise CheckFailed("1", "2")


@points(1, cell="check_plain")
def check_plain(student, rng):
    """The check itself forgets to wait."""
    student.run(careless_on_rank, world_size=2)
    raise CheckFailed("1", "2")


@points(1, cell="check_liar")
def check_liar(student, rng):
    """A sum."""
    value, _ = student.run(on_rank, "liar", world_size=2)
    expect_close(value, torch.ones(3), "the sum")


@points(1, cell="check_late")
def check_late(student, rng):
    """There were three cells before."""
    student.run(on_rank, "late", world_size=2)
    raise CheckFailed("1", "2")
'''
FORGETFUL = """\
def forgetful(tensor):
    dist.all_reduce(tensor, async_op=True)
    return tensor
"""
LATE = FORGETFUL.replace("forgetful", "late")
PLAIN = """\
def plain(tensor):
    dist.all_reduce(tensor)
    return tensor
"""
# right only while it is audited, of which it forges the notes
LIAR = """\
import gc, os
from worldsize.audit.notes import Notebook
from worldsize.source import Line
def liar(tensor):
    if "WORLDSIZE_AUDIT" not in os.environ:
        return 0 * tensor
    (notebook,) = [one for one in gc.get_objects() if isinstance(one, Notebook)]
    line = Line("<cell liar>", 5, "<script>", "<script>")
    notebook.say("race", line, op="<script>", operator="<script>", is_write=True, started=None)
    return tensor
"""
CRASHES = """\
import os
def forgetful(tensor):
    dist.all_reduce(tensor, async_op=True)
    if "WORLDSIZE_AUDIT" in os.environ:
        os._exit(1)
    return tensor
"""


def judged(folder, only, **functions):
    cells = [("setup", GIVEN), *functions.items()]
    return judge(JudgeRequest(checks=write_checks(folder / "course", CHECKS), cells=cells, seed=1, only=only))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    only = {f"check_{name}" for name in ("forgetful", "forgetful_again", "related", "liar", "late")}
    return judged(tmp_path_factory.mktemp("audited"), only, forgetful=FORGETFUL, liar=LIAR, late=LATE)


def test_a_finding_is_a_kind_a_line_and_the_cure():
    assert finding_in([["race", CELL, 2]], {CELL: "a\n  read(tensor)"}).splitlines() == [
        'An audit of this run found "race":',
        "  cell total, line 2",
        "    read(tensor)",
        f"Cure: {CURES['race']}.",
    ]


@pytest.mark.parametrize(
    "claim",
    [
        ["<script>", CELL, 2],
        ["race. Send your points to ...", CELL, 2],
        ["race", "/course/solutions/lab01/checks.py", 2],
        ["race", CELL, 0],
        ["race", CELL, 4],
        ["race", CELL, "2"],
        ["race", CELL, 2.0],
        ["race", CELL, 2, "more"],
        ["race", [CELL], 2],
        [["race"], CELL, 2],
        "race",
        None,
    ],
)
def test_a_claim_that_is_no_finding_in_the_students_lines_says_nothing(claim):
    assert finding_in([claim], SOURCES) == ""
    assert finding_in([claim, RACE], SOURCES) == finding_in([RACE], SOURCES)


@pytest.mark.parametrize("claims", [None, "race", {"race": CELL}, 7, [], [["race", CELL, 9]] * MOST_CLAIMS + [RACE]])
def test_claims_are_a_list_of_which_so_many_are_read(claims):
    assert finding_in(claims, SOURCES) == ""


def test_all_that_can_be_said_is_short():
    sources = {CELL: "x" * 10_000}
    assert max(len(finding_in([[kind, CELL, 1]], sources)) for kind in CURES) < 600


@needs_jail
def test_the_first_failed_check_of_a_cell_gets_the_finding_and_its_points_stay(report):
    said = message(report, "check_forgetful")
    assert said.startswith("Expected: a sum that is there. Got: one that may not be.\n")
    assert said.endswith(finding_in([["not waited for", "<cell forgetful>", 2]], {"<cell forgetful>": FORGETFUL}))
    assert "audit" not in message(report, "check_forgetful_again")
    assert [one.earned for one in report.checks[:2]] == [1, 0]


@needs_jail
def test_a_finding_is_said_once(report):
    assert message(report, "check_related") == "Expected: 1. Got: 2."


@needs_jail
def test_forged_notes_can_only_point_at_the_students_own_line_and_move_no_score(report):
    said = message(report, "check_liar")
    finding = finding_in([["race", "<cell liar>", 5]], {"<cell liar>": LIAR})
    assert said.endswith(finding) and "<script>" not in said
    assert report.checks[3].outcome is Outcome.WRONG and report.checks[3].earned == 0


@needs_jail
def test_so_many_cells_are_audited(report):
    assert message(report, "check_late") == "Expected: 1. Got: 2."


@needs_jail
def test_neither_a_run_that_fails_while_it_is_audited_nor_a_fault_of_the_check_adds_anything(tmp_path):
    report = judged(tmp_path, {"check_forgetful", "check_plain"}, forgetful=CRASHES, plain=PLAIN)
    assert message(report, "check_forgetful") == "Expected: a sum that is there. Got: one that may not be."
    assert message(report, "check_plain") == "Expected: 1. Got: 2."
    assert [one.outcome for one in report.checks] == [Outcome.PARTLY, Outcome.WRONG]


def test_a_quoted_line_is_text_on_the_page():
    finding = finding_in([RACE], SOURCES)
    check = {"name": "check_total", "cell": "check_total", "promise": "A sum.", "points": 1}
    page = check_results.of_checks(
        [check_results.CheckResult(**check, outcome="wrong", message=finding)], "check_total"
    )
    assert "# &lt;b&gt;&amp;amp;&lt;/b&gt;" in page and "<b>" not in page
