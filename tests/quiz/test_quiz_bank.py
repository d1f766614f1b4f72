"""The question bank: every template over a thousand seeds, and its answers against other computations of the same."""

import itertools
import math
import re
from collections.abc import Iterator

import pytest
import quiz_oracles_week03  # noqa: F401
import quiz_oracles_week04  # noqa: F401
import quiz_oracles_week05  # noqa: F401
import quiz_oracles_week06  # noqa: F401
import quiz_oracles_week07  # noqa: F401
import quiz_oracles_week08  # noqa: F401
import quiz_oracles_week09  # noqa: F401
import quiz_oracles_week10  # noqa: F401
import quiz_oracles_week11  # noqa: F401
import quiz_oracles_week12  # noqa: F401
import quiz_oracles_week13  # noqa: F401
import quiz_oracles_week14  # noqa: F401
import quiz_oracles_week15  # noqa: F401
from quiz_oracles import ORACLES, agree
from repository import ROOT

from worldsize.quiz import Question, Variant, draw, load, mark
from worldsize.quiz.bank import Steps
from worldsize.quiz.expressions import evaluate
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Phrase, Prose

FILES = sorted(path.stem for path in (ROOT / "quizzes").glob("*.toml") if path.stem != "blueprints")
TAUGHT = sorted(int(re.findall(r"\d+", path.name)[0]) for path in (ROOT / "weeks").glob("week*.py"))
QUESTIONS = {question.id: question for name in FILES for question in load(name, ROOT / "quizzes").question}
TEMPLATES = {id: question for id, question in QUESTIONS.items() if question.parameters}
NUM_SEEDS = 1000
FEWEST_SAMPLES = 12
FEWEST_VARIANTS = 300


def templates_and_oracles() -> list:
    return [(id, place) for id in sorted(TEMPLATES) for place in range(len(ORACLES.get(id, ())))]


def test_ids_are_of_one_question_each() -> None:
    names = [path.stem for path in (ROOT / "quizzes").glob("*.toml") if path.stem != "blueprints"]
    ids = [question.id for name in names for question in load(name, ROOT / "quizzes").question]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_questions_of_its_week_and_pools_and_templates_enough(name: str) -> None:
    questions = load(name, ROOT / "quizzes").question
    pools = [question.pool for question in questions]
    assert sum(bool(question.parameters) for question in questions) >= 6
    if name.startswith("week"):
        assert {question.week for question in questions} == {int(name[4:])}
        assert pools[:5] == ["self-check"] * 5 and set(pools[5:]) == {"weekly"} and len(pools) >= 10
    else:
        assert set(pools) == {"exam"} and sum(question.week in TAUGHT for question in questions) >= 12


@pytest.mark.parametrize("week", TAUGHT)
def test_a_taught_week_has_a_file(week: int) -> None:
    assert f"week{week:02}" in FILES


def test_what_is_to_be_explained_is_an_essay_with_a_rubric_of_four_points() -> None:
    essays = [question for question in QUESTIONS.values() if question.kind == "essay"]
    assert len([one for one in essays if one.week in TAUGHT]) >= 4
    assert {one.points for one in essays} == {4}
    assert all(len(one.rubric) >= 4 and one.pool == "exam" for one in essays)


def test_the_bank_has_every_kind_and_pictures() -> None:
    kinds = {question.kind for question in QUESTIONS.values()}
    assert kinds == {"single", "multiple", "numeric", "ordering", "text", "cloze", "essay"}
    assert sum(question.figure is not None for question in QUESTIONS.values()) >= 2


def num_variants(question: Question) -> int:
    """How many variants can be drawn that meet all requirements, or 300 where there are more."""
    values = [given.values if isinstance(given, Steps) else given for given in question.parameters.values()]
    num = 0
    for drawn in itertools.product(*values):
        names = dict(zip(question.parameters, drawn, strict=True))
        for name, expression in question.where.items():
            names[name] = evaluate(expression, names)
        num += all(evaluate(required, names) for required in question.require)
        if num == FEWEST_VARIANTS:
            break
    return num


@pytest.mark.parametrize("id", TEMPLATES)
def test_two_students_hardly_share_a_variant(id: str) -> None:
    assert num_variants(TEMPLATES[id]) >= FEWEST_VARIANTS


def texts(variant: Variant) -> Iterator[str]:
    """All that a reader may see."""
    yield from (variant.text, variant.feedback)
    if variant.picture:
        yield from (variant.picture.title, variant.picture.alt, variant.picture.events)
    for answer in parts(variant).values():
        match answer:
            case Options():
                yield from (text for option in answer.options for text in (option.text, option.feedback))
            case Amount():
                yield from (answer.text, *(mistake.feedback for mistake in answer.mistakes))
            case Phrase():
                yield from (*answer.accepted, *(mistake.feedback for mistake in answer.mistakes))
            case Order():
                yield from answer.shown
            case Prose():
                yield from (line.text for line in answer.rubric)


def parts(variant: Variant) -> dict[str, Answer]:
    """The answer, or those of the gaps by name."""
    return dict(variant.answer.gaps) if isinstance(variant.answer, Gaps) else {"": variant.answer}


def right_response(answer: Answer):
    """What a student who copies the key would answer."""
    match answer:
        case Options():
            return sorted(answer.right)
        case Amount():
            return answer.text
        case Phrase():
            return answer.accepted[0]
        case Order():
            return answer.places
        case Gaps():
            return {name: right_response(gap) for name, gap in answer.gaps.items()}


LEFT_OVER = re.compile(r"\{\{|\}\}|\{%|%\}|[Uu]ndefined|\bNone\b|\d\.\d{7}|\de[+-]?\d")
NO_NUMBER = re.compile(r"\bnan\b|\binf\b")
ASKS_FOR_INF = {"w05-float16-range"}


def is_far(one: float, other: float, fraction: float) -> bool:
    return abs(one - other) > fraction * max(abs(one), abs(other))


@pytest.fixture
def sample_fraction(request: pytest.FixtureRequest) -> float:
    """How much of a full sample this run can wait for."""
    return 1.0 if request.config.getoption("nightly") else 0.1


@pytest.mark.parametrize("id", QUESTIONS)
def test_what_is_drawn_is_sound(id: str, sample_fraction: float) -> None:
    question, seen = QUESTIONS[id], set()
    for seed in range(int(NUM_SEEDS * sample_fraction) if question.parameters else 20):
        variant = draw(question, seed)
        if (question.parameters and variant.id in seen) or seen.add(variant.id):
            continue
        for text in texts(variant):
            events = variant.picture.events if variant.picture else None
            assert text is events or not LEFT_OVER.search(text), text
            assert id in ASKS_FOR_INF or not NO_NUMBER.search(text), text
            assert text.count("$") % 2 == 0, text
        if question.kind == "essay":
            assert mark(variant, "Some words.").is_waiting
            continue
        assert mark(variant, right_response(variant.answer)).share == pytest.approx(1)
        for name, answer in parts(variant).items():
            wrong_ones_are_marked_wrong(variant, name, answer)


def wrong_ones_are_marked_wrong(variant: Variant, gap: str, answer: Answer) -> None:
    def marked(response):
        return mark(variant, {gap: response} if gap else response)

    match answer:
        case Options():
            for place, option in enumerate(answer.options):
                if not option.correct:
                    assert marked([place]).share == 0 and marked([place]).misconceptions == (option.misconception,)
            values = [option.value for option in answer.options if option.value is not None]
            assert all(is_far(one, other, 0.02) for one, other in itertools.combinations(values, 2)), values
        case Amount():
            number = _limits(variant, gap)
            assert math.isfinite(answer.value) and number.low <= answer.value <= number.high
            share = 1 / len(parts(variant))
            assert marked(f"{answer.value:.{answer.digits}g}").share == pytest.approx(share)
            fraction = answer.tolerance / answer.value
            for mistake in answer.mistakes:
                assert is_far(mistake.value, answer.value, 2 * fraction)
                result = marked(mistake.value)
                assert result.share == 0 and result.misconceptions == (mistake.misconception,)
            both = itertools.combinations([mistake.value for mistake in answer.mistakes], 2)
            assert all(is_far(one, other, 2 * fraction) for one, other in both), [m.value for m in answer.mistakes]
        case Phrase():
            for mistake in answer.mistakes:
                result = marked(mistake.text)
                assert result.share == 0 and result.misconceptions == (mistake.misconception,)
        case Order():
            assert marked(answer.places[::-1]).share < 1
            assert len(set(answer.shown)) == len(answer.shown)


def _limits(variant: Variant, gap: str):
    return variant.question.gap[gap] if gap else variant.question


@pytest.mark.parametrize("id", [id for id, question in QUESTIONS.items() if question.figure])
def test_pictures_are_drawn(id: str) -> None:
    assert png(draw(QUESTIONS[id], 0).picture).startswith(b"\x89PNG")


def test_every_computed_answer_has_an_oracle() -> None:
    assert sorted(set(TEMPLATES) - set(ORACLES)) == []
    assert sorted(set(ORACLES) - set(TEMPLATES)) == []


def stated(answer: Answer):
    """The answer in the words of an oracle."""
    match answer:
        case Options():
            (option,) = [option for option in answer.options if option.correct]
            return option.text if option.value is None else option.value
        case Amount():
            return answer.value
        case Phrase():
            return answer.accepted[0]
        case Order():
            return list(answer.in_order)
        case Gaps():
            return {name: stated(gap) for name, gap in answer.gaps.items()}


@pytest.mark.parametrize(("id", "place"), templates_and_oracles())
def test_answers_agree_with_another_computation(id: str, place: int, sample_fraction: float) -> None:
    oracle, variants = ORACLES[id][place], {}
    sample = max(FEWEST_SAMPLES, int(oracle.sample * sample_fraction))
    for seed in range(NUM_SEEDS):
        variant = draw(TEMPLATES[id], seed)
        if oracle.can(variant):
            variants[variant.id] = variant
        if len(variants) == sample:
            break
    assert len(variants) >= FEWEST_SAMPLES
    for variant in variants.values():
        found = oracle(variant)
        assert agree(found, stated(variant.answer)), (variant.parameters, found, stated(variant.answer))


def test_an_oracle_disagrees_with_a_wrong_answer() -> None:
    """What disagrees is seen: in a number, in a text, in an order, in one of several gaps."""
    assert agree(1.0, 1 + 1e-9) and not agree(1.0, 1.001)
    assert not agree("double", "stay") and not agree(["a", "b"], ["b", "a"])
    assert agree({"a": 1, "b": "x"}, {"a": 1.0, "b": "x"}) and not agree({"a": 1, "b": "x"}, {"a": 1, "b": "y"})
    assert not agree({"a": 1}, {"a": 1, "b": 2})
