"""The shipped blueprints against the shipped bank: each can be dealt, from weeks that are there to be taught."""

import re

import pytest
from repository import ROOT

from autograder.quiz.blueprint import read_blueprints
from autograder.quiz.forms import deal
from autograder.quiz.roster import Student
from autograder.quiz.whole_bank import read_bank

QUIZZES = ROOT / "quizzes"
TAUGHT = sorted(int(re.findall(r"\d+", path.name)[0]) for path in (ROOT / "weeks").glob("week*.py"))
BLUEPRINTS = read_blueprints(QUIZZES)
WEEKLY = [("weekly", {"weeks": (week,)}) for week in TAUGHT]


@pytest.fixture(scope="module")
def bank():
    return read_bank(QUIZZES)


@pytest.mark.parametrize("key", [b"one secret", b"another"])
@pytest.mark.parametrize(("name", "change"), [(name, {}) for name in BLUEPRINTS if name != "weekly"] + WEEKLY)
def test_a_blueprint_can_be_dealt_from_taught_weeks(bank, name, change, key):
    blueprint = BLUEPRINTS[name].model_copy(update=change)
    forms = list(deal(blueprint, bank, [Student(f"s{number}", "") for number in range(8)], key))
    asked = [variant.question for form in forms for variant in form.variants]
    assert len(asked) == len(forms) * blueprint.count
    assert {question.week for question in asked} <= {*TAUGHT}
    assert all(form.minutes <= (blueprint.minutes or form.minutes) for form in forms)
