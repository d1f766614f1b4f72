"""Parsing responses as people write them on paper, in a table or in a cell: letters, numbers, words, numbered gaps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from autograder.quiz.key import letter
from worldsize.quiz.marking import number
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Prose

_BETWEEN = re.compile(r"[\s,;+/]+")


def parse_written(answer: Answer, written: str) -> Any:
    """Convert a written response to the argument of `worldsize.quiz.mark`; None if it is empty.

    Options are letters as the key prints them (`C`, `A, C`), an order is the letters from the first to the last
    (`B A C`), and gaps are numbered or named (`1: 14; 2: one chunk`).

    Raises:
        ValueError: it cannot be read as an answer of this kind; says why.
    """
    text = " ".join(written.split())
    if not text:
        return None
    match answer:
        case Prose():
            return written.strip()
        case Options():
            return _choice(text, answer)
        case Amount():
            try:
                number(text, answer.unit)
            except ValueError as error:
                raise ValueError(f"{text!r} is {error}") from None
            return text
        case Order():
            places = _letters(text, len(answer.shown))
            if len(places) < len(answer.shown):
                raise ValueError(f"{text!r} has {len(places)} of {len(answer.shown)} letters")
            return places
        case Gaps():
            return _gaps(text, answer)
        case _:
            return text


def parse_value(answer: Answer, value: Any) -> Any:
    """Like `parse_written`, for a Python value: a number, a string, a list of letters, or a dict of gaps.

    Raises:
        ValueError: it cannot be read as an answer of this kind; says why.
    """
    if value is None or value is ... or value in ("", [], {}, ()):
        return None
    if isinstance(value, Mapping) and isinstance(answer, Gaps):
        named = {_gap_name(str(name), answer): given for name, given in value.items()}
        if len(named) < len(value):
            raise ValueError(f"{value!r} fills a gap twice")
        read = {name: parse_value(answer.gaps[name], given) for name, given in named.items()}
        return {name: given for name, given in read.items() if given is not None} or None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return parse_written(answer, repr(value))
    if isinstance(value, set) and len(value) > 1 and not isinstance(answer, Options):
        raise ValueError("it is a set, which has no order: write a list")
    if isinstance(value, Sequence | set) and all(isinstance(one, str) for one in value):
        between = "; " if isinstance(answer, Gaps) else ", "
        parts = sorted(value) if isinstance(value, set) else value
        return parse_written(answer, value if isinstance(value, str) else between.join(parts))
    raise ValueError(f"{value!r} is not a number, letters or words")


def _choice(text: str, answer: Options) -> list[int]:
    places = _letters(text, len(answer.options))
    if answer.single and len(places) > 1:
        raise ValueError(f"{text!r} chooses {len(places)} options; choose one")
    return places


def _letters(text: str, num: int) -> list[int]:
    marks = [mark for mark in _BETWEEN.split(text) if mark]
    marks = list(marks[0]) if len(marks) == 1 else marks
    known = {letter(place): place for place in range(num)}
    if not marks or any(mark.upper() not in known for mark in marks):
        raise ValueError(f"{text!r} must consist of the letters A to {letter(num - 1)}")
    places = [known[mark.upper()] for mark in marks]
    if len(set(places)) < len(places):
        raise ValueError(f"{text!r} has a letter twice")
    return places


def _gaps(text: str, answer: Gaps) -> dict[str, Any] | None:
    names = "|".join([r"\d+", *map(re.escape, answer.gaps)])
    head = rf"(?:\((?:{names})\)\s*:?|(?:{names})\s*:)"
    if not re.match(head, text):
        if len(answer.gaps) > 1:
            raise ValueError(f"{text!r} does not say which gap is which: write 1: ...; 2: ...")
        text = f"1: {text}"
    filled: dict[str, Any] = {}
    for part in re.split(rf";\s*(?={head})", text):
        found = re.match(rf"{head}\s*", part)
        assert found is not None
        name = _gap_name(found[0].strip(" ():"), answer)
        if name in filled:
            raise ValueError(f"{text!r} fills a gap twice")
        filled[name] = parse_written(answer.gaps[name], part[found.end() :].strip(" ;"))
    return {name: given for name, given in filled.items() if given is not None} or None


def _gap_name(given: str, answer: Gaps) -> str:
    names = list(answer.gaps)
    if given in names:
        return given
    if given.isdecimal() and 1 <= int(given) <= len(names):
        return names[int(given) - 1]
    raise ValueError(f"there is no gap {given!r}: there are 1 to {len(names)}, called {', '.join(names)}")
