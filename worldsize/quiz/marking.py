"""Marking: the share of a question that an answer earns, and the feedback on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Phrase, Prose, Variant
from worldsize.units import parse_number


@dataclass(frozen=True)
class Marked:
    """The share of a question that an answer earns, from 0 to 1; what was mixed up; the feedback (Markdown).

    The share of an essay that nobody has graded is not a number, so that nothing can be computed with it by mistake.
    """

    share: float
    misconceptions: tuple[str, ...] = ()
    feedback: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """True if nothing is missing."""
        return math.isclose(self.share, 1.0)

    @property
    def is_waiting(self) -> bool:
        """True until a person has graded it."""
        return math.isnan(self.share)


UNANSWERED = Marked(0.0)
WAITING = Marked(math.nan)


def mark(variant: Variant, response: Any) -> Marked:
    """Mark a response to a question; None, or an empty one, earns nothing.

    A response is the indices of the chosen options, a number or its text, words, the indices of the shown items from
    first to last, or a mapping from the names of gaps to such responses.

    - single: all or nothing. multiple: the share of right options that were chosen, less the same for each wrong
      one, and never below 0. ordering: the share of items in their place. cloze: the mean of the gaps.
    - a number counts within its tolerance, with or without its unit; words count regardless of case and spaces.
    - essay: waits to be graded by hand.

    Raises:
        ValueError: the response is not of the question's kind.
    """
    marked = mark_answer(variant.answer, response)
    if marked is UNANSWERED or marked.is_waiting or not variant.feedback:
        return marked
    return Marked(marked.share, marked.misconceptions, (*marked.feedback, variant.feedback))


def mark_answer(answer: Answer, response: Any) -> Marked:
    """Mark one answer, without the feedback on the question as a whole."""
    if _is_empty(response):
        return UNANSWERED
    match answer:
        case Options():
            return _mark_options(answer, response)
        case Amount():
            return _mark_amount(answer, response)
        case Phrase():
            return _mark_phrase(answer, response)
        case Order():
            return _mark_order(answer, response)
        case Gaps():
            return _mark_gaps(answer, response)
        case Prose():
            return WAITING


def _is_empty(response: Any) -> bool:
    return response is None or (isinstance(response, str | list | tuple | set | dict) and not response)


def _mark_options(answer: Options, response: Iterable[int]) -> Marked:
    chosen = {response} if isinstance(response, int) else set(response)
    if not all(isinstance(index, int) and 0 <= index < len(answer.options) for index in chosen):
        raise ValueError(f"{sorted(map(str, chosen))} are not numbers of its {len(answer.options)} options")
    options = [answer.options[index] for index in sorted(chosen)]
    if answer.single:
        share = float(chosen == answer.right)
    else:
        share = max(0.0, (len(chosen & answer.right) - len(chosen - answer.right)) / len(answer.right))
    mixed_up = tuple(option.misconception for option in options if option.misconception)
    return Marked(share, mixed_up, tuple(f"**{option.text}**\n\n{option.feedback}" for option in options))


def _mark_amount(answer: Amount, response: Any) -> Marked:
    try:
        value = number(response, answer.unit)
    except ValueError as error:
        said = " ".join(str(response).replace("`", "'").split())[:80]  # stays inside its code marks
        return Marked(0.0, (), (f"`{said}` is {error}.",))
    if _is_near(value, answer.value, answer.tolerance):
        return Marked(1.0)
    for mistake in answer.mistakes:
        if _is_near(value, mistake.value, abs(mistake.value) * answer.tolerance / max(abs(answer.value), 1e-300)):
            return Marked(0.0, (mistake.misconception,), (mistake.feedback,))
    return Marked(0.0)


def _mark_phrase(answer: Phrase, response: Any) -> Marked:
    given = plain(str(response))
    if given in map(plain, answer.accepted):
        return Marked(1.0)
    for mistake in answer.mistakes:
        if given == plain(mistake.text):
            return Marked(0.0, (mistake.misconception,), (mistake.feedback,))
    return Marked(0.0)


def _mark_order(answer: Order, response: Sequence[int]) -> Marked:
    given = list(response)
    if sorted(given) != list(range(len(answer.shown))):
        raise ValueError(f"{given} does not order its {len(answer.shown)} items")
    num_right = sum(one == other for one, other in zip(given, answer.places, strict=True))
    return Marked(num_right / len(given))


def _mark_gaps(answer: Gaps, response: Mapping[str, Any]) -> Marked:
    if unknown := sorted(set(response) - set(answer.gaps)):
        raise ValueError(f"there is no gap {unknown[0]!r}; the gaps are {', '.join(answer.gaps)}")
    marked = [mark_answer(gap, response.get(name)) for name, gap in answer.gaps.items()]
    return Marked(
        sum(part.share for part in marked) / len(marked),
        tuple(said for part in marked for said in part.misconceptions),
        tuple(said for part in marked for said in part.feedback),
    )


def number(response: Any, unit: str = "") -> float:
    """Parse the number that a student gave, or typed with or without its unit.

    Raises:
        ValueError: it is not a finite number; as `parse_number`.
    """
    return parse_number(str(response), unit)


def plain(text: str) -> str:
    """Normalize words to compare them: lower case, single spaces, one kind of hyphen, no final full stop."""
    text = re.sub(r"[\N{EN DASH}\N{NON-BREAKING HYPHEN}\N{HYPHEN}-]", "-", text.lower())
    return " ".join(text.split()).rstrip(".")


def _is_near(value: float, wanted: float, tolerance: float) -> bool:
    return abs(value - wanted) <= tolerance * (1 + 1e-9) + 1e-300
