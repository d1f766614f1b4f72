"""The shipped blueprints against the shipped bank: each can be dealt, from weeks that are there to be taught."""

import re

import pytest
from repository import ROOT

from autograder.quiz.blueprint import BlueprintCell, read_blueprints
from autograder.quiz.forms import deal
from autograder.quiz.whole_bank import read_bank
from autograder.tables.roster import Student

QUIZZES = ROOT / "quizzes"
TAUGHT = sorted(int(re.findall(r"\d+", path.name)[0]) for path in (ROOT / "weeks").glob("week*.py"))
EXAMINED = [week for week in TAUGHT if week <= 14]  # weeks beyond have a weekly quiz only
BLUEPRINTS = read_blueprints(QUIZZES)
WEEKLY = [("weekly", {"weeks": (week,)}) for week in TAUGHT]
EXAMS = {"midterm": {"exam", "weekly"}, "final": {"exam", "weekly"}, "practical": {"exam"}}
POOLS = {"weekly": {"weekly"}, "module": {"weekly"}, **EXAMS}
NUM_KEYS = 20


@pytest.fixture(scope="module")
def bank():
    return read_bank(QUIZZES)


@pytest.mark.parametrize(("name", "change"), [(name, {}) for name in BLUEPRINTS if name != "weekly"] + WEEKLY)
def test_a_blueprint_can_be_dealt_from_taught_weeks_and_its_own_pools(bank, name, change):
    blueprint = BLUEPRINTS[name].model_copy(update=change)
    pools, makeups = set(), set()
    for key in range(NUM_KEYS):
        forms = list(deal(blueprint, bank, [Student("ada"), Student("noor")], f"secret {key}".encode()))
        asked = [variant.question for form in forms for variant in form.variants]
        assert len(asked) == len(forms) * blueprint.count
        assert {question.week for question in asked} <= {*TAUGHT}
        assert all(form.minutes <= blueprint.minutes for form in forms)
        assert len({form.out_of for form in forms}) == 1
        pools |= {question.pool for question in asked}
        makeups |= {tuple(sorted(BlueprintCell.of(variant.question) for variant in form.variants)) for form in forms}
    assert pools == POOLS[name]
    assert len(makeups) == 1, "forms differ in what they have of a week and a difficulty"


def test_an_exam_asks_for_explanations(bank):
    (form,) = deal(BLUEPRINTS["final"], bank, [Student("ada")], b"secret")
    last = form.variants[-BLUEPRINTS["final"].essays :]
    assert {variant.question.kind for variant in last} == {"essay"} and len(last) == 4
    assert all("xplain" in variant.text or "trade-offs" in variant.text for variant in last)


def test_exams_ask_about_every_week(bank):
    asked = {week: [one for one in bank if one.pool == "exam" and one.week == week] for week in EXAMINED}
    assert all(len(questions) >= 4 for week, questions in asked.items() if week >= 8)
    assert {week for week, questions in asked.items() if any(one.kind == "essay" for one in questions)} >= {
        *range(2, 15)
    }
    for name in ("module", "final"):
        assert {*BLUEPRINTS[name].weeks} == {*EXAMINED}


def test_essays_come_from_the_weeks_that_a_blueprint_names(bank):
    weeks = {}
    for name in EXAMS:
        (form,) = deal(BLUEPRINTS[name], bank, [Student("ada")], b"secret")
        weeks[name] = {one.question.week for one in form.variants if one.question.kind == "essay"}
    assert weeks == {"midterm": {2, 6}, "final": {8, 10, 11, 13}, "practical": {12, 14}}
