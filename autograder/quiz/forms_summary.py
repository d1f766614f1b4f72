"""Summary of a quiz: whether its forms are equally hard, and how many variants they have in common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from autograder.quiz.forms import Form
from worldsize.units import number_of

_DIFFICULTIES = (1, 2, 3)


def summary_text(forms: Sequence[Form], formats: Sequence[str]) -> str:
    """The summary as text."""
    head = (
        f"{forms[0].blueprint.title}: {number_of(len(forms), 'form')} of {number_of(len(forms[0].asked), 'question')}"
    )
    return "\n".join([head, f"written as {', '.join(formats)}", "", *_coverage(forms), "", *_facts(forms), ""])


def shared(forms: Sequence[Form]) -> tuple[float, float]:
    """The share of parametrised variants that two forms have in common: the mean and the maximum over all pairs."""
    holders: dict[str, list[int]] = defaultdict(list)
    sizes = []
    for place, form in enumerate(forms):
        ids = [variant.id for variant in form.variants if variant.parameters]
        sizes.append(len(ids))
        for id in ids:
            holders[id].append(place)
    common = Counter(pair for places in holders.values() for pair in combinations(places, 2))
    shares = [num / min(sizes[one], sizes[other]) for (one, other), num in common.items()]
    num_pairs = len(forms) * (len(forms) - 1) // 2
    return (sum(shares) / num_pairs, max(shares)) if shares else (0.0, 0.0)


def _cells(form: Form) -> Counter[tuple[int, int]]:
    return Counter((variant.question.week, variant.question.difficulty) for variant in form.variants)


def _coverage(forms: Sequence[Form]) -> Iterable[str]:
    """The lines of a table: the number of questions by week and difficulty."""
    every = {tuple(sorted(_cells(form).items())) for form in forms}
    cells = _cells(forms[0])
    yield f"questions of {'every form' if len(every) == 1 else 'the first form; OTHERS DIFFER'}, by difficulty"
    yield f"{'':>8}" + "".join(f"{difficulty:>6}" for difficulty in _DIFFICULTIES) + f"{'all':>6}"
    weeks = sorted({week for week, _ in cells})
    for name, counted in [*((f"week {week}", [week]) for week in weeks), ("all", weeks)]:
        row = [sum(cells[week, difficulty] for week in counted) for difficulty in _DIFFICULTIES]
        yield f"{name:>8}" + "".join(f"{num or '':>6}" for num in row) + f"{sum(row):>6}"


def _facts(forms: Sequence[Form]) -> Iterable[str]:
    difficulties = [sum(v.question.difficulty for v in form.variants) / len(form.asked) for form in forms]
    minutes = [form.minutes for form in forms]
    essays = sum(variant.question.kind == "essay" for variant in forms[0].variants)
    uses = Counter(variant.question.id for form in forms for variant in form.variants)
    yield f"mean difficulty  {_range(difficulties, '.2f')}"
    yield f"minutes          {_range(minutes, 'g')}"
    if extended := [form for form in forms if form.student.extra_time_percent]:
        listed = ", ".join(f"{form.student.id} {form.allowed_minutes:g}" for form in extended)
        yield f"extra time       minutes: {listed}; an LMS is to be set to them by hand"
    if essays:
        points = _range([form.out_of for form in forms], "g")
        yield f"essays           {essays} on every form, graded by hand; {points} points in all"
    yield f"questions used   {len(uses)}, each on {_range(list(uses.values()), 'd')} of the forms"
    if not any(variant.parameters for form in forms for variant in form.variants):
        yield "shared variants  no question has parameters, so that forms differ in choice and order alone"
    elif len(forms) > 1:
        mean, worst = shared(forms)
        yield (
            f"shared variants  on average {mean:.1%} of the parametrised questions of two forms, at worst {worst:.1%}"
        )


def _range(values: Sequence[float], format: str) -> str:
    low, high = f"{min(values):{format}}", f"{max(values):{format}}"
    return low if low == high else f"{low} to {high}"
