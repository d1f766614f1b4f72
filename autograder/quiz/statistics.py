"""Statistics of a quiz and of each of its questions, from a class's answers; flags for questions to check.

Students may have been asked different questions, so the statistics of a question use only the students who were asked
it, and a student's ability is the mean share of the *other* questions of that student's form. Forms are equally hard.

Sources: Crocker and Algina, Introduction to Classical and Modern Test Theory (1986), on item analysis and reliability;
docs.moodle.org, Quiz statistics calculations, for the facility index and for the discrimination index as the
correlation with the rest of the quiz; Kelley, The selection of upper and lower groups for the validation of test items
(1939), for 27%; Cronbach, Coefficient alpha and the internal structure of tests (1951); Tarrant, Ware and Mohammed,
BMC Medical Education 9:40 (2009), for distractors that fewer than 5 % choose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from scipy import stats

from autograder.quiz.marked_forms import MarkedAnswer, MarkedForm
from worldsize.quiz import Question
from worldsize.quiz.bank import Choices, Cloze, Number, Words, gap_names
from worldsize.quiz.marking import mark_answer
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Phrase

UPPER_LOWER = 0.27
FEWEST = 20  # the fewest students who must have been asked a question for it to be flagged
LEVEL = 0.05  # significance level of each test that flags a question
VARIANTS_LEVEL = 0.01  # the same for differences between variants, where several groupings are tried
EASY, HARD = 0.95, 0.1  # mean shares beyond which a question is flagged without a test
EXPECTED = 5  # the least expected count in a cell of a chi-square test (Cochran's rule)
RIGHT = "right"
OTHER = "another answer"
EMPTY = "no answer"


def facility(shares: Sequence[float]) -> float:
    """Moodle's facility index: the mean share earned, from 0 to 1."""
    return float(np.mean(shares))


def discrimination(shares: Sequence[float], rests: Sequence[float]) -> float | None:
    """The correlation of the share with the mean share of the student's other questions, from -1 to 1.

    For shares of 0 and 1 this is the corrected point-biserial correlation: the rest does not include the question
    itself. None with fewer than three students, or if either does not vary.
    """
    if len(shares) < 3 or np.ptp(shares) < 1e-12 or np.ptp(rests) < 1e-12:
        return None
    return float(np.corrcoef(shares, rests)[0, 1])


def upper_group(rests: Sequence[float], fraction: float = UPPER_LOWER) -> np.ndarray:
    """The weight of each student in the best `fraction` of the class, from 0 to 1.

    Students who are tied at the border share the remaining weight, so their order in a list has no effect.
    """
    values = np.asarray(rests, dtype=float)
    size = max(1, round(fraction * len(values)))
    border = np.sort(values)[-size]
    above, tied = values > border + 1e-12, np.abs(values - border) <= 1e-12
    return above + tied * (size - above.sum()) / tied.sum()


def upper_lower(shares: Sequence[float], rests: Sequence[float], fraction: float = UPPER_LOWER) -> float | None:
    """The mean share of the best 27% of students minus that of the weakest 27%, ranked by their other questions.

    None with fewer than four students, or if all did equally well on their other questions.
    """
    if len(shares) < 4 or np.ptp(rests) < 1e-12:
        return None
    upper, lower = upper_group(rests, fraction), upper_group([-rest for rest in rests], fraction)
    return float(np.average(shares, weights=upper) - np.average(shares, weights=lower))


def cronbach_alpha(points: np.ndarray) -> float | None:
    """Cronbach's alpha of a table with a row for each student and a column for each question.

    For k questions k/(k-1) (1 - the sum of their variances / the variance of the sum). None with fewer than two
    questions or three students, or if all students have the same points.
    """
    num_students, num_questions = points.shape
    if num_students < 3 or num_questions < 2 or (total := points.sum(axis=1).var(ddof=1)) < 1e-12:
        return None
    return float(num_questions / (num_questions - 1) * (1 - points.var(axis=0, ddof=1).sum() / total))


def upper_bound(correlation: float, num: int) -> float:
    """The upper bound of a one-sided 95% confidence interval of a correlation, using Fisher's z."""
    return float(np.tanh(np.arctanh(min(correlation, 1 - 1e-12)) + stats.norm.ppf(1 - LEVEL) / math.sqrt(num - 3)))


def at_most(count: int, num: int) -> float:
    """The upper bound of a one-sided 95% confidence interval of a proportion (Clopper and Pearson)."""
    return 1.0 if count >= num else float(stats.beta.ppf(1 - LEVEL, count + 1, num - count))


def at_least(count: int, num: int) -> float:
    """The lower bound of a one-sided 95% confidence interval of a proportion (Clopper and Pearson)."""
    return 0.0 if count <= 0 else float(stats.beta.ppf(LEVEL, count, num - count + 1))


@dataclass(frozen=True)
class Grouping:
    """A test of whether variants of a question differ in difficulty: the groups compared, with their success rates.

    `p` is the probability that equally hard groups differ this much, times the number of groupings tried. It is None
    with too few students; `needs` is then about how many are needed (None: nobody or everybody got it right).
    """

    by: str = ""
    groups: tuple[tuple[str, int, float], ...] = ()
    p: float | None = None
    needs: int | None = None


def compare_variants(parameters: Sequence[Mapping[str, Hashable]], is_right: Sequence[bool]) -> Grouping:
    """Test with chi-square whether students who got different variants were right equally often.

    Students are grouped by the whole variant, and by each parameter: by its values, or by low and high values if there
    are too many. Every cell must expect at least five students. The p of the clearest grouping is multiplied by the
    number of groupings (Bonferroni). There must be enough students for two equal groups to have five in every cell.
    """
    rate = float(np.mean(is_right))
    tested: list[tuple[float, str, list[tuple[str, int, float]]]] = []
    names = sorted(set().union(*parameters)) if parameters else []
    whole = ["; ".join(f"{name} = {given[name]}" for name in names) for given in parameters]
    candidates: list[tuple[str, list[list[Hashable]]]] = [("the variant", [list(whole)])] if len(names) > 1 else []
    for name in names:
        values = [given[name] for given in parameters]
        candidates.append((name, [list(values), *_halves(values)]))
    for by, ways in candidates:
        for labels in ways:
            if (found := _chi_square(labels, is_right)) is not None:
                tested.append((found, by, _rates(labels, is_right)))
                break
    if not tested:
        needs = None if rate in (0.0, 1.0) else math.ceil(2 * EXPECTED / min(rate, 1 - rate))
        return Grouping(needs=needs)
    p, by, groups = min(tested)
    return Grouping(by, tuple(groups), min(1.0, p * len(tested)))


def _halves(values: Sequence[Hashable]) -> list[list[Hashable]]:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values) or len(set(numbers)) < 3:
        return []
    middle = median(numbers)
    return [[f"up to {middle:g}" if value <= middle else f"above {middle:g}" for value in numbers]]


def _chi_square(labels: Sequence[Hashable], is_right: Sequence[bool]) -> float | None:
    counts = _counts(labels, is_right)
    table = np.array([counts[label] for label in counts])
    if len(table) < 2 or 0 in table.sum(axis=0):
        return None
    if (stats.contingency.expected_freq(table) < EXPECTED).any():
        return None
    found: Any = stats.chi2_contingency(table, correction=False)
    return float(found.pvalue)


def _counts(labels: Sequence[Hashable], is_right: Sequence[bool]) -> dict[Hashable, list[int]]:
    counts: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0])
    for label, right in zip(labels, is_right, strict=True):
        counts[label][not right] += 1
    return counts


def _rates(labels: Sequence[Hashable], is_right: Sequence[bool]) -> list[tuple[str, int, float]]:
    counts = _counts(labels, is_right)
    return [(str(label), sum(both), both[0] / sum(both)) for label, both in sorted(counts.items(), key=_by_label)]


def _by_label(item: tuple[Hashable, list[int]]) -> tuple[float, str]:
    return (item[0] if isinstance(item[0], int | float) else 0.0), str(item[0])


@dataclass(frozen=True)
class Use:
    """How often one answer was given: the count, the fraction, and the counts among the best and the weakest 27%.

    `mean_rest` is the mean share that these students earned on their other questions: higher for a right answer.
    """

    label: str
    gap: str
    is_right: bool
    misconception: str | None
    count: int
    fraction: float
    num_upper: float
    num_lower: float
    mean_rest: float | None
    is_offered: bool  # as one of the options to choose from

    @property
    def is_mistake(self) -> bool:
        """Whether this is a wrong answer that the bank lists."""
        return not self.is_right and self.label not in (OTHER, EMPTY)


@dataclass(frozen=True)
class Flag:
    """A reason why an instructor should check a question."""

    name: str
    text: str


@dataclass(frozen=True)
class ItemStatistics:
    """One question of the bank, by all students who were asked it."""

    question: Question
    num_asked: int
    num_empty: int
    facility: float
    deviation: float
    discrimination: float | None
    upper_lower: float | None
    guess: float | None
    uses: tuple[Use, ...]
    variants: Grouping | None
    flags: tuple[Flag, ...]


@dataclass(frozen=True)
class Totals:
    """Statistics of a quiz's points; `alpha_note` says which questions alpha covers, or why it is not defined.

    `error_points` is the standard error of a student's points: the standard deviation times the root of 1 - alpha.
    """

    num_passed: int
    mean: float
    middle: float
    deviation: float
    lowest: float
    highest: float
    alpha: float | None
    alpha_note: str
    error_points: float | None


@dataclass(frozen=True)
class Overview:
    """Statistics of a quiz; `totals` is None while answers of `num_waiting` students wait to be graded by hand."""

    title: str
    num_forms: int
    num_handed_in: int
    num_waiting: int
    totals: Totals | None
    minutes: float | None
    minutes_planned: float


def overview(marked_forms: Sequence[MarkedForm]) -> Overview:
    """Compute the statistics of a quiz. Raises: ValueError if no student submitted anything."""
    there = _handed_in(marked_forms)
    taken = [marked_form.minutes for marked_form in there if marked_form.minutes is not None]
    return Overview(
        title=there[0].form.blueprint.title,
        num_forms=len(marked_forms),
        num_handed_in=len(there),
        num_waiting=sum(bool(marked_form.num_waiting) for marked_form in there),
        totals=None if any(marked_form.num_waiting for marked_form in there) else _totals(there),
        minutes=median(taken) if taken else None,
        minutes_planned=float(np.mean([marked_form.form.minutes for marked_form in there])),
    )


def _totals(there: Sequence[MarkedForm]) -> Totals:
    fractions = np.array([marked_form.fraction for marked_form in there])
    points = np.array([marked_form.points for marked_form in there])
    alpha, note, num = _reliability(there)
    whole = num == len(there[0].answered)
    return Totals(
        num_passed=sum(marked_form.is_passed for marked_form in there),
        mean=float(fractions.mean()),
        middle=float(np.median(fractions)),
        deviation=float(fractions.std(ddof=1)) if len(there) > 1 else 0.0,
        lowest=float(fractions.min()),
        highest=float(fractions.max()),
        alpha=alpha,
        alpha_note=note,
        error_points=float(points.std(ddof=1) * math.sqrt(max(0.0, 1 - alpha)))
        if whole and alpha is not None
        else None,
    )


def items(marked_forms: Sequence[MarkedForm]) -> list[ItemStatistics]:
    """The statistics of each question, by week and id; without essays while any of them waits to be graded."""
    results: dict[str, list[tuple[MarkedAnswer, float]]] = defaultdict(list)
    questions: dict[str, Question] = {}
    there = _handed_in(marked_forms)
    has_waiting = any(marked_form.num_waiting for marked_form in there)
    for marked_form in there:
        answered = [one for one in marked_form.answered if not has_waiting or one.variant.question.kind != "essay"]
        total, num = sum(one.marked.share for one in answered), len(answered)
        for one in answered:
            rest = (total - one.marked.share) / (num - 1) if num > 1 else 0.0
            results[one.variant.question.id].append((one, rest))
            questions[one.variant.question.id] = one.variant.question
    ordered = sorted(questions.values(), key=lambda question: (question.week, question.id))
    return [_item(question, results[question.id]) for question in ordered]


def _handed_in(marked_forms: Sequence[MarkedForm]) -> list[MarkedForm]:
    there = [marked_form for marked_form in marked_forms if marked_form.is_handed_in]
    if not there:
        raise ValueError("No student in this key has handed anything in.")
    return there


def _reliability(marked_forms: Sequence[MarkedForm]) -> tuple[float | None, str, int]:
    by_question = [
        {one.variant.question.id: one.points for one in marked_form.answered} for marked_form in marked_forms
    ]
    shared = sorted(set(by_question[0]).intersection(*by_question))
    if len(shared) < 2:
        return None, "not defined: fewer than two questions were asked of everybody", len(shared)
    alpha = cronbach_alpha(np.array([[points[id] for id in shared] for points in by_question]))
    if alpha is None:
        return None, "not defined: fewer than three students, or all have the same points", len(shared)
    asked = "all" if len(shared) == len(by_question[0]) else "only the"
    return alpha, f"of {asked} {len(shared)} questions that everybody was asked", len(shared)


def _item(question: Question, results: Sequence[tuple[MarkedAnswer, float]]) -> ItemStatistics:
    shares, rests = [one.marked.share for one, _ in results], [rest for _, rest in results]
    variants = None
    if question.parameters:
        variants = compare_variants(
            [one.variant.parameters for one, _ in results], [one.marked.is_right for one, _ in results]
        )
    found = ItemStatistics(
        question=question,
        num_asked=len(results),
        num_empty=sum(one.is_empty for one, _ in results),
        facility=facility(shares),
        deviation=float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0,
        discrimination=discrimination(shares, rests),
        upper_lower=upper_lower(shares, rests),
        guess=1 / len(question.choice) if question.kind == "single" else None,
        uses=tuple(_uses(question, results)),
        variants=variants,
        flags=(),
    )
    return ItemStatistics(**{**vars(found), "flags": tuple(_flags(found))})


def _uses(question: Question, results: Sequence[tuple[MarkedAnswer, float]]) -> Iterable[Use]:
    rests = [rest for _, rest in results]
    upper, lower = upper_group(rests), upper_group([-rest for rest in rests])
    gaps = gap_names(question.text) if isinstance(question, Cloze) else [""]
    for gap in gaps:
        kinds = {label: (is_right, named, offered) for label, is_right, named, offered in _known(question, gap)}
        if not kinds:
            continue
        given = [_labels(one, gap) for one, _ in results]
        for label, (is_right, named, offered) in kinds.items():
            has = np.array([label in labels for labels in given])
            yield Use(
                label=label,
                gap=gap,
                is_right=is_right,
                misconception=named,
                count=int(has.sum()),
                fraction=float(has.mean()),
                num_upper=float((has * upper).sum()),
                num_lower=float((has * lower).sum()),
                mean_rest=float(np.mean(np.array(rests)[has])) if has.any() else None,
                is_offered=offered,
            )


def _known(question: Question, gap: str) -> Iterable[tuple[str, bool, str | None, bool]]:
    """The bank's answers to a question: label, whether it is right, misconception, whether it is offered."""
    asked = question.gap[gap] if isinstance(question, Cloze) else question
    if isinstance(asked, Choices):
        for place, choice in enumerate(asked.choice):
            yield _choice_label(asked, place), choice.correct, choice.misconception, True
        yield EMPTY, False, None, False
    elif isinstance(asked, Number | Words):
        yield RIGHT, True, None, False
        for misconception in dict.fromkeys(mistake.misconception for mistake in asked.mistake):
            yield misconception, False, misconception, False
        yield OTHER, False, None, False
        yield EMPTY, False, None, False


def _choice_label(asked: Choices, place: int) -> str:
    choice = asked.choice[place]
    return " ".join((choice.text or choice.value or "").split())


def _labels(one: MarkedAnswer, gap: str) -> set[str]:
    """The labels of a student's answer, as in `_known`."""
    if one.is_empty or one.given is None:
        return {EMPTY}
    answer: Answer = one.variant.answer
    response, asked = one.given.response, one.variant.question
    if isinstance(answer, Gaps):
        if gap not in response:
            return {EMPTY}
        answer, response = answer.gaps[gap], response[gap]
        asked = asked.gap[gap] if isinstance(asked, Cloze) else asked
    if isinstance(answer, Options) and isinstance(asked, Choices):
        return {_choice_label(asked, answer.options[place].place) for place in response}
    if isinstance(answer, Amount | Phrase):
        marked = mark_answer(answer, response)
        return {RIGHT} if marked.is_right else set(marked.misconceptions) or {OTHER}
    return set()


def _flags(item: ItemStatistics) -> Iterable[Flag]:
    """What to check: too easy and too hard by limits; the others are tested, each by itself, at the levels above."""
    num = item.num_asked
    if num < FEWEST:
        return
    if item.discrimination is not None and num > 3:
        bound = upper_bound(item.discrimination, num)
        if bound < 0:
            text = f"Better students do worse here (r = {item.discrimination:.2f}): check the key first."
            yield Flag("negative discrimination", text)
        elif bound < 0.2:
            yield Flag("discriminates little", f"Strong and weak students do alike (r = {item.discrimination:.2f}).")
    yield from _answer_flags(item)
    if item.facility > EASY:
        yield Flag("too easy", f"The mean share is {item.facility:.0%}.")
    if item.facility < HARD:
        yield Flag("too hard", f"The mean share is {item.facility:.0%}.")
    elif (
        item.guess
        and item.facility + stats.norm.ppf(1 - LEVEL) * math.sqrt(item.guess * (1 - item.guess) / num) < item.guess
    ):
        yield Flag("worse than guessing", f"The mean share is {item.facility:.0%}, and chance gives {item.guess:.0%}.")
    if at_least(item.num_empty, num) > 0.1:
        yield Flag("often left empty", f"{item.num_empty} of {num} gave no answer.")
    if item.variants and item.variants.p is not None and item.variants.p < VARIANTS_LEVEL:
        rates = ", ".join(f"{label}: {rate:.0%} of {count}" for label, count, rate in item.variants.groups)
        yield Flag("variants differ", f"By {item.variants.by} ({rates} right; p = {item.variants.p:.2g}).")


def _answer_flags(item: ItemStatistics) -> Iterable[Flag]:
    for gap in dict.fromkeys(use.gap for use in item.uses):
        uses = [use for use in item.uses if use.gap == gap]
        right = round(min((use.num_upper for use in uses if use.is_right), default=0.0))
        for use in uses:
            wrong = round(use.num_upper)
            if use.is_mistake and wrong > right and _chance_of(wrong, wrong + right) < LEVEL:
                chose = f"In the best 27%, {wrong} chose {use.label!r}, which is marked wrong"
                yield Flag("wrong answer preferred", f"{chose}, and {right} answered correctly.")
            if use.is_offered and use.is_mistake and item.facility <= 0.9 and at_most(use.count, item.num_asked) < 0.05:
                text = f"{use.count or 'None'} of {item.num_asked} chose {use.label!r}: it misleads hardly anyone."
                yield Flag("idle choice", text)


def _chance_of(count: int, num: int) -> float:
    """The probability of at least `count` heads in `num` throws."""
    return float(stats.binom.sf(count - 1, num, 0.5))
