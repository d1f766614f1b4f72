"""Statistics of questions agree with independent computation; bad questions are flagged, and good ones are not."""

import math

import numpy as np
import pytest
from quiz_samples import HEAD, question
from scipy import stats

from autograder.quiz import statistics
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.forms import AskedQuestion, Form
from autograder.quiz.marked_forms import MarkedAnswer, MarkedForm
from autograder.quiz.responses import Response
from autograder.quiz.results import report
from autograder.tables.roster import Student
from worldsize.quiz import draw, mark

SINGLE = f"""
id = "ID"
kind = "single"
{HEAD}
text = "Which?"
choice = [
    {{text = "right", correct = true, feedback = "Yes."}},
    {{text = "near", correct = false, misconception = "half of it", feedback = "No."}},
    {{text = "far", correct = false, misconception = "all of it", feedback = "No."}},
    {{text = "odd", correct = false, misconception = "none of it", feedback = "No."}},
]
"""
NUMERIC = f"""
id = "ID"
kind = "numeric"
{HEAD}
text = "{{{{ n }}}} times {{{{ m }}}}?"
parameters = {{n = {{low = 2, high = 41}}, m = [3, 5]}}
answer = "n * m"
low = 1
high = 1000
feedback = "Multiply."
mistake = [{{value = "n + m + 300", misconception = "a sum", feedback = "Multiply."}}]
"""
RIGHT, EMPTY = "right", None
NUM_STUDENTS = 300


def named(text, id):
    return question(text.replace('"ID"', f'"{id}"'))


def choose(variant, text):
    """The response that chooses the option with this text; None of nothing."""
    return text and [next(n for n, option in enumerate(variant.answer.options) if option.text == text)]


def marked_form(student, asked_and_given, minutes=None):
    """A marked form from pairs of a variant and a response."""
    blueprint = Blueprint(title="Test", count=len(asked_and_given))
    asked = tuple(AskedQuestion("", variant) for variant, _ in asked_and_given)
    answered = tuple(
        MarkedAnswer(number, one, Response(str(response), response, ""), mark(one.variant, response))
        for number, (one, (_, response)) in enumerate(zip(asked, asked_and_given, strict=True), start=1)
    )
    return MarkedForm(Form(Student(str(student)), blueprint, asked), answered, True, minutes)


def two_parameter_class(slopes, seed=1, num_students=NUM_STUDENTS, answer=None):
    """A simulated class: the chance of a right answer is 1 / (1 + exp(-a (ability - b))), the two-parameter model.

    `answer(item, is_right, ability, chance)` is what is chosen; without it, a right one or any wrong one.
    """
    chance = np.random.default_rng(seed)
    abilities = chance.normal(size=num_students)
    levels = np.linspace(-1, 1, len(slopes))
    variants = [[draw(named(SINGLE, f"t-{number:02d}"), seed) for seed in range(4)] for number in range(len(slopes))]
    marked_forms = []
    for student, ability in enumerate(abilities):
        given = []
        for number, (slope, level) in enumerate(zip(slopes, levels, strict=True)):
            is_right = chance.random() < 1 / (1 + math.exp(-slope * (ability - level)))
            variant = variants[number][student % 4]
            wrong = chance.choice(["near", "far", "odd"])
            chosen = answer and answer(number, is_right, ability, chance)
            given.append((variant, choose(variant, chosen or (RIGHT if is_right else str(wrong)))))
        marked_forms.append(marked_form(student, given))
    return marked_forms


def flags(marked_forms):
    """The names of the flags of each question that has some."""
    found = statistics.items(marked_forms)
    return {item.question.id: {flag.name for flag in item.flags} for item in found if item.flags}


def test_discrimination_is_the_correlation_with_the_rest():
    chance = np.random.default_rng(0)
    shares, rests = chance.integers(0, 2, 60).astype(float), chance.random(60)
    found = statistics.discrimination(shares, rests)
    assert found == pytest.approx(stats.pointbiserialr(shares, rests).statistic)
    right, wrong = rests[shares == 1], rests[shares == 0]  # the textbook's formula
    by_hand = (right.mean() - wrong.mean()) / rests.std() * math.sqrt(shares.mean() * (1 - shares.mean()))
    assert found == pytest.approx(by_hand)
    assert statistics.discrimination([1, 1, 1], [0, 0.5, 1]) is None
    assert statistics.discrimination([0, 1], [0, 1]) is None


def test_the_question_itself_is_left_out_of_the_rest():
    marked_forms = two_parameter_class([1.0] * 5, num_students=80)
    shares = np.array([[one.marked.share for one in marked_form.answered] for marked_form in marked_forms])
    for number, item in enumerate(statistics.items(marked_forms)):
        rest = np.delete(shares, number, axis=1).mean(axis=1)
        assert item.discrimination == pytest.approx(stats.pearsonr(shares[:, number], rest).statistic)
        assert item.facility == pytest.approx(shares[:, number].mean())
        assert item.deviation == pytest.approx(shares[:, number].std(ddof=1))


def test_upper_and_lower_groups_by_hand():
    rests = [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]  # 27% of 11 are 3
    shares = [1, 1, 0.5, 0, 1, 0, 0, 1, 0, 0.5, 0]
    assert statistics.upper_group(rests).tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert statistics.upper_lower(shares, rests) == pytest.approx(2.5 / 3 - 0.5 / 3)
    assert statistics.upper_lower([1, 0, 1], [1, 2, 3]) is None
    assert statistics.upper_lower([1, 0, 1, 0], [1, 1, 1, 1]) is None


def test_who_is_tied_at_the_border_shares_its_places():
    group = statistics.upper_group([3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1])
    assert group.tolist() == [1, *[pytest.approx(2 / 3)] * 3, *[0] * 7] and group.sum() == pytest.approx(3)


def test_alpha_of_a_case_by_hand_and_its_bounds():
    table = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=float)
    # variances 1/4, 1/3, 1/4; sums 2, 1, 3, 0 with variance 5/3
    assert statistics.cronbach_alpha(table) == pytest.approx(1.5 * (1 - (5 / 6) / (5 / 3)))
    same = np.repeat(np.array([[0.0], [1.0], [0.5]]), 4, axis=1)
    assert statistics.cronbach_alpha(same) == pytest.approx(1)
    assert statistics.cronbach_alpha(np.ones((5, 3))) is None
    assert statistics.cronbach_alpha(table[:2]) is None and statistics.cronbach_alpha(table[:, :1]) is None


def test_alpha_is_near_what_covariances_say():
    shares = np.random.default_rng(2).random((50, 6))
    covariance = np.cov(shares.T)
    expected = 6 / 5 * (1 - np.trace(covariance) / covariance.sum())
    assert statistics.cronbach_alpha(shares) == pytest.approx(expected)


def test_bounds_are_those_of_scipy():
    for count, num in ((0, 59), (3, 40), (40, 40)):
        interval = stats.binomtest(count, num, alternative="less").proportion_ci(0.95)
        assert statistics.at_most(count, num) == pytest.approx(interval.high)
        interval = stats.binomtest(count, num, alternative="greater").proportion_ci(0.95)
        assert statistics.at_least(count, num) == pytest.approx(interval.low)
    # 0 of 58 may still be 5 %, 0 of 59 may not
    assert statistics.at_most(0, 58) > 0.05 > statistics.at_most(0, 59)
    chance = np.random.default_rng(5)
    shares, rests = chance.random(40), chance.random(40)
    found = stats.pearsonr(shares, rests, alternative="less")
    assert statistics.upper_bound(found.statistic, 40) == pytest.approx(found.confidence_interval(0.95).high)


def test_variants_of_equal_difficulty_are_compared_by_chi_square():
    given = [{"m": 3}] * 40 + [{"m": 5}] * 60
    is_right = [True] * 30 + [False] * 10 + [True] * 20 + [False] * 40
    found = statistics.compare_variants(given, is_right)
    table = np.array([[30, 10], [20, 40]])
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / 100
    by_hand = stats.chi2.sf(((table - expected) ** 2 / expected).sum(), 1)
    assert (found.by, found.p) == ("m", pytest.approx(by_hand))
    assert found.groups == (("3", 40, 0.75), ("5", 60, pytest.approx(1 / 3)))


def test_many_values_are_compared_in_halves_and_tries_are_counted():
    given = [{"n": n, "m": 3 + 2 * (n % 2)} for n in range(200)]
    found = statistics.compare_variants(given, [n < 100 for n in range(200)])
    assert found.by == "n" and [label for label, *_ in found.groups] == ["above 99.5", "up to 99.5"]
    assert found.p == pytest.approx(2 * stats.chi2.sf(200, 1))
    even = statistics.compare_variants(given, [n % 4 < 2 for n in range(200)])
    assert even.p == 1.0


def test_too_few_students_say_how_many_it_needs():
    given = [{"m": 3}, {"m": 5}] * 12
    found = statistics.compare_variants(given, [True] * 18 + [False] * 6)
    assert found.p is None and found.needs == 40  # two halves of 20 with 5 wrong each
    assert statistics.compare_variants([{"m": 3}, {"m": 5}] * 20, [True] * 30 + [False] * 10).p is not None
    assert statistics.compare_variants(given, [True] * 24).needs is None


@pytest.mark.parametrize("seed", range(4))
def test_good_questions_are_not_flagged(seed):
    assert flags(two_parameter_class([1.2] * 12, seed)) == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_question_with_the_wrong_key_is_flagged_and_no_other(seed):
    """The best choose `near`, which the key calls wrong."""

    def answer(number, is_right, ability, chance):
        return {True: "near", False: "right"}[is_right] if number == 6 else None

    found = flags(two_parameter_class([1.2] * 12, seed, answer=answer))
    assert found["t-06"] >= {"negative discrimination", "wrong answer preferred"} and len(found) == 1


def test_a_coin_is_flagged_as_telling_little_apart():
    assert flags(two_parameter_class([1.2] * 6 + [0.0] + [1.2] * 5, seed=7))["t-06"] & {
        "discriminates little",
        "negative discrimination",
    }


def test_choices_that_nobody_takes_empty_easy_and_hard_questions_are_flagged():
    def answer(number, is_right, ability, chance):
        if number == 0:
            return "near" if not is_right else RIGHT
        if number == 1:
            return RIGHT if chance.random() < 0.98 else "far"
        if number == 2:
            return RIGHT if chance.random() < 0.04 else str(chance.choice(["near", "far", "odd"]))
        return None

    marked_forms = two_parameter_class([1.2] * 8, 3, answer=answer)
    for one in marked_forms[::4]:  # every fourth leaves the last empty
        last = one.answered[-1]
        empty = MarkedAnswer(last.number, last.asked, None, mark(last.variant, None))
        marked_forms[marked_forms.index(one)] = MarkedForm(one.form, (*one.answered[:-1], empty), True)
    found = flags(marked_forms)
    assert found.pop("t-00") == {"idle choice"}
    assert {"too easy"} <= found.pop("t-01") <= {"too easy", "discriminates little"}
    assert "too hard" in found.pop("t-02")
    assert found.pop("t-07") == {"often left empty"} and found == {}
    item = next(item for item in statistics.items(marked_forms) if item.question.id == "t-07")
    assert item.num_empty == 75
    assert next(use.count for use in item.uses if use.label == statistics.EMPTY) == 75


def numeric_class(num_students, hard_above, seed=0):
    """A class with five equally hard questions and a template that few get right where its n is above a limit."""
    chance = np.random.default_rng(seed)
    template = named(NUMERIC, "t-times")
    others = [[draw(named(SINGLE, f"t-{number}"), seed) for seed in range(4)] for number in range(5)]
    marked_forms = []
    for student in range(num_students):
        ability, given = chance.normal(), []
        for other in others:
            variant = other[student % 4]
            is_right = chance.random() < 1 / (1 + math.exp(-1.5 * ability))
            given.append((variant, choose(variant, RIGHT if is_right else "near")))
        variant = draw(template, str(student))
        level = 1.5 if variant.parameters["n"] > hard_above else -0.5
        is_right = chance.random() < 1 / (1 + math.exp(-1.5 * (ability - level)))
        n, m = variant.parameters["n"], variant.parameters["m"]
        given.append((variant, n * m if is_right else n + m + 300 if student % 2 else 999))
        marked_forms.append(marked_form(student, given, minutes=10 + student % 3))
    return marked_forms


def test_variants_that_differ_in_difficulty_are_flagged_and_equal_ones_are_not():
    found = statistics.items(numeric_class(300, hard_above=21))
    times = next(item for item in found if item.question.id == "t-times")
    assert {flag.name for flag in times.flags} == {"variants differ"} and times.variants.by == "n"
    assert "t-times" not in flags(numeric_class(300, hard_above=999))


def test_named_mistakes_are_counted_with_their_misconception():
    marked_forms = numeric_class(60, hard_above=21)
    times = next(item for item in statistics.items(marked_forms) if item.question.id == "t-times")
    uses = {use.label: use for use in times.uses}
    marks = [
        one.marked
        for marked_form in marked_forms
        for one in marked_form.answered
        if one.variant.question.id == "t-times"
    ]
    assert uses["a sum"].count == sum(one.misconceptions == ("a sum",) for one in marks) > 0
    assert uses["right"].count == sum(one.is_right for one in marks)
    assert sum(use.count for use in uses.values()) == 60
    assert uses["a sum"].misconception == "a sum" and uses["right"].mean_rest > uses["another answer"].mean_rest


def test_the_page_says_which_flags_are_limits_and_which_are_tests():
    marked_forms = two_parameter_class([-9.0, 1.2, -3.0, 1.2], num_students=60)
    page = " ".join(report(marked_forms, statistics.items(marked_forms)).split())
    assert "questions stand out." in page
    assert "are limits of the mean share, 95% and 10%. Every other flag is tested by itself" in page
    assert "in at most 5% of all cases" in page and "variants differ&rdquo; in 1%" in page


def test_few_students_are_never_flagged():
    marked_forms = two_parameter_class([1.2, 1.2, -3.0, 1.2], num_students=statistics.FEWEST - 1)
    assert flags(marked_forms) == {}
    assert "fewer are too few to judge" in report(marked_forms, statistics.items(marked_forms))


def test_reliability_is_defined_only_where_all_were_asked_the_same():
    same = two_parameter_class([1.2] * 6, num_students=40)
    whole = statistics.overview(same).totals
    assert whole.alpha is not None and 0 < whole.alpha < 1
    assert whole.alpha_note == "of all 6 questions that everybody was asked"
    points = np.array([one.points for one in same])
    assert whole.error_points == pytest.approx(points.std(ddof=1) * math.sqrt(1 - whole.alpha))
    differ = [
        MarkedForm(one.form, one.answered[:4] + one.answered[4 + n % 2 :][:1], True) for n, one in enumerate(same)
    ]
    part = statistics.overview(differ).totals
    assert part.alpha_note == "of only the 4 questions that everybody was asked" and part.error_points is None
    apart = [MarkedForm(one.form, one.answered[n % 6 :][:1], True) for n, one in enumerate(same)]
    assert statistics.overview(apart).totals.alpha is None
    assert "fewer than two questions were asked of everybody" in statistics.overview(apart).totals.alpha_note


def test_the_overview_by_hand():
    marked_forms = numeric_class(30, hard_above=999)
    found = statistics.overview(marked_forms)
    fractions = [marked_form.points / 6 for marked_form in marked_forms]
    assert (found.num_handed_in, found.minutes, found.minutes_planned) == (30, 11, 12)
    totals = found.totals
    assert totals.mean == pytest.approx(np.mean(fractions)) and totals.middle == pytest.approx(np.median(fractions))
    assert totals.num_passed == sum(fraction >= 0.8 for fraction in fractions)
    nobody = [MarkedForm(one.form, one.answered, False) for one in marked_forms]
    with pytest.raises(ValueError, match="No student in this key"):
        statistics.overview(nobody)
