r"""Reading learning platforms' reports: Moodle's responses, and the student analysis of Canvas's classic quizzes.

Sources, read in November 2026. Moodle, `mod/quiz/report/responses` of moodle/moodle: columns `Response N`, and, where
these are asked for, `Question N` and `Right answer N`; `-` means no answer; chosen options and ordered items are
separated by `; `, items cut to ten characters (`shorten_text(..., 10, true)` of qtype_ordering), gaps as `part 1: ...;
part 2: ...` (qtype_multianswer), pairs as `item -> choice`. Canvas,
`app/models/quizzes/quiz_statistics/student_analysis.rb` of instructure/canvas-lms: `name, id, sis_id, section, ...`,
for each question `ID: text` and its points, then `n correct, n incorrect, score`; several parts are separated by
commas, with `\,` for a comma in one, pairs as `item=>choice`.

Both contain texts rather than letters, without markup. A text that matches no option, or two, is reported as a problem
and never guessed. The layouts were read from the platforms' source, not from an installation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import unescape
from typing import Any

from autograder.quiz.forms import Form
from autograder.quiz.responses import Problem, Responses
from autograder.quiz.written_answers import parse_written
from autograder.tables.csv_table import CsvTable
from worldsize.quiz.question_text import html
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Prose, Variant

_MARKUP = re.compile(r"\\[()\[\]]|[\s$*_`\\]")
_GAP = re.compile(r"\[\[[a-z][a-z0-9]*\]\]")  # underlines are markup here
_ADDED = {  # what our exports add to the text of a question
    Amount: r"(\(giveanumber\b.*\))?",
    Prose: r"(\(answerinyourownwords\b.*\))?",
}
_ORDINAL = re.compile(r"(\d+)(?:\.|st|nd|rd|th)?")
_CUT = "..."
_UNITS_MIN = {"day": 24 * 60, "hour": 60, "min": 1, "sec": 1 / 60}
_CANVAS_ENDS = {"n correct", "n incorrect", "score"}


def is_moodle(head: Sequence[str]) -> bool:
    """Whether this is the header row of Moodle's report of responses."""
    return any(re.fullmatch(r"Response \d+", name) for name in head)


def is_canvas(head: Sequence[str]) -> bool:
    """Whether this is the header row of Canvas's student analysis."""
    return set(head) >= _CANVAS_ENDS and any(re.match(r"\d+: ", name) for name in head)


def read_moodle(table: CsvTable, responses: Responses) -> None:
    """Read Moodle's report, by number, or by the questions' texts where the report has them.

    Raises:
        ValueError: no column names our students, or the numbers of questions differ.
    """
    column = _students(table, responses, ("Username", "ID number", "Email address"))
    numbers = [int(name.split()[1]) for name in table.head if re.fullmatch(r"Response \d+", name)]
    for line, row in table.rows:
        where = table.where(line)
        written = {number: row[f"Response {number}"].strip() for number in numbers}
        state = (row.get("State") or row.get("Status") or "").strip()
        if state == "-" and set(written.values()) <= {"-", ""}:
            continue  # enrolled, without an attempt
        form = responses.form(row[column], where)
        if form is None or not responses.once(form, where):
            continue
        if state not in ("", "Finished"):
            reason = f"the attempt is {state!r} and not 'Finished'"
            responses.problems.append(Problem(where, form.student.id, None, reason))
            continue
        for number, text in written.items():
            asked = row.get(f"Question {number}")
            place = _by_text(form, asked) if asked is not None else _by_place(form, number, len(numbers))
            _put(responses, form, place, text, where, number, of_moodle)
        responses.minutes |= _minutes(form, row.get("Time taken") or row.get("Duration") or "")


def read_canvas(table: CsvTable, responses: Responses) -> None:
    """Read Canvas's student analysis by the questions' texts.

    Raises:
        ValueError: no column names our students.
    """
    column = _students(table, responses, ("sis_id", "id", "name"))
    questions = {name: name.partition(": ")[2] for name in table.head if re.match(r"\d+: ", name)}
    for line, row in table.rows:
        where = table.where(line)
        form = responses.form(row[column], where)
        if form is None or not responses.once(form, where):
            continue
        for number, (name, text) in enumerate(questions.items(), start=1):
            written = row[name].strip()
            place = _by_text(form, text)
            if place is None and not written:
                continue  # a question of a different student's form
            _put(responses, form, place, written, where, number, of_canvas)


def of_moodle(answer: Answer, text: str) -> Any:
    """Parse a response of Moodle's report. Raises: ValueError."""
    if text in ("", "-"):
        return None
    match answer:
        case Options():
            texts = [option.text for option in answer.options]
            return [_place(text, texts)] if answer.single else _several(text, texts, "; ")
        case Order():
            if " -> " in text:
                return _from_pairs([part.rsplit(" -> ", 1) for part in text.split("; ")], answer)
            return _all_of(_several(text, list(answer.shown), "; ", cut=True), answer)
        case Gaps():
            parts = re.split(r"(?:^|; )part (\d+): ", text)
            if parts[0] or sorted(map(int, parts[1::2])) != list(range(1, len(answer.gaps) + 1)):
                raise ValueError(f"{text!r} does not have {len(answer.gaps)} parts, `part 1: ...; part 2: ...`")
            filled = {
                list(answer.gaps)[int(number) - 1]: given
                for number, given in zip(parts[1::2], parts[2::2], strict=True)
            }
            read = {name: of_moodle(answer.gaps[name], given.strip()) for name, given in filled.items()}
            return {name: given for name, given in read.items() if given is not None} or None
        case _:
            return parse_written(answer, text)


def of_canvas(answer: Answer, text: str) -> Any:
    """Parse a response of Canvas's report. Raises: ValueError."""
    if not text:
        return None
    match answer:
        case Options():
            texts = [option.text for option in answer.options]
            return [_place(text, texts)] if answer.single else sorted(_place(part, texts) for part in _parts(text))
        case Order():
            return _from_pairs([re.split(r"\\?=>", part, maxsplit=1) for part in _parts(text)], answer)
        case Gaps():
            parts = _parts(text)
            if len(parts) != len(answer.gaps):
                raise ValueError(
                    f"{text!r} has {len(parts)} parts for {len(answer.gaps)} gaps, and Canvas does not say which is "
                    "which"
                )
            read = {
                name: _blank_of_canvas(gap, part.strip())
                for (name, gap), part in zip(answer.gaps.items(), parts, strict=True)
            }
            return {name: given for name, given in read.items() if given is not None} or None
        case Amount():
            return parse_written(answer, text.replace("\\,", ","))
        case _:
            return parse_written(answer, text)


def _blank_of_canvas(gap: Answer, text: str) -> Any:
    """Parse the response in a gap; in Canvas, students type a choice's text or its letter."""
    if not isinstance(gap, Options):
        return of_canvas(gap, text)
    readings: list[Any] = []
    for read in (of_canvas, parse_written):
        try:
            readings.append(read(gap, text))
        except ValueError:
            continue
    if not readings or readings != readings[:1] * len(readings):
        raise ValueError(f"{text!r} matches the letter or the text of {'two choices' if readings else 'no choice'}")
    return readings[0]


@lru_cache(maxsize=65536)
def comparable(markdown: str) -> str:
    """A text of the bank in the form used for comparison: without markup and white space, in lower case."""
    return bare(unescape(re.sub(r"<[^>]*>", "", html(markdown))))


def bare(text: str) -> str:
    """A text of a report in the form used for comparison: without the rest of its markup, in lower case."""
    return _MARKUP.sub("", text).casefold()


def _students(table: CsvTable, responses: Responses, columns: Sequence[str]) -> str:
    """The one of these columns that has the most of our students."""
    there = [name for name in columns if name in table.head]
    known = {name: sum(responses.is_known(row[name]) for _, row in table.rows) for name in there}
    if not any(known.values()):
        raise ValueError(
            f"{table.file} names none of the key's students in its columns "
            f"{', '.join(there) or '(none of ' + ', '.join(columns) + ')'}: the roster's ids must be in one of them."
        )
    return max(there, key=known.__getitem__)


def _put(responses: Responses, form: Form, place: int | None, text: str, where: str, column: int, read: Any) -> None:
    if place is None:
        if text not in ("", "-"):
            reason = (
                f"the question in column {column} matches none, or more than one, of this form's questions; "
                f"the response is {text!r}"
            )
            responses.problems.append(Problem(where, form.student.id, None, reason))
        return
    responses.put(form, place, text, where, lambda: read(responses.answer(form, place), text))


def _by_place(form: Form, number: int, num: int) -> int:
    if num != len(form.asked):
        raise ValueError(
            f"The report has {num} questions and the form of {form.student.id} has {len(form.asked)}: export it with "
            "the questions' texts (Display options, question text), so that they can be distinguished."
        )
    return number


def _by_text(form: Form, text: str) -> int | None:
    """The number of a form's question with this text, whatever its gaps contain; None unless exactly one matches."""
    given = bare(unescape(text))
    numbers = [number for number, question in enumerate(form.asked, start=1) if _has_text(question.variant, given)]
    return numbers[0] if len(numbers) == 1 else None


def _has_text(variant: Variant, given: str) -> bool:
    pieces = _GAP.split(comparable(variant.text))
    added = _ADDED.get(type(variant.answer), "")
    return re.fullmatch(".*?".join(map(re.escape, pieces)) + added, given) is not None


def _place(text: str, texts: Sequence[str], cut: bool = False) -> int:
    given = bare(text)
    if cut and text.endswith(_CUT):
        found = [place for place, one in enumerate(texts) if comparable(one).startswith(given.removesuffix(_CUT))]
    else:
        found = [place for place, one in enumerate(texts) if comparable(one) == given]
    if len(found) != 1:
        raise ValueError(f"{text!r} matches {len(found) or 'none'} of the {len(texts)} texts that were offered")
    return found[0]


def _several(text: str, texts: Sequence[str], between: str, cut: bool = False) -> list[int]:
    """The indices of the texts in a list, where a text may itself contain the separator."""
    parts = text.split(between)
    places: list[int] = []
    start = 0
    while start < len(parts):
        for end in range(len(parts), start, -1):
            try:
                places.append(_place(between.join(parts[start:end]), texts, cut))
            except ValueError:
                continue
            start = end
            break
        else:
            _place(parts[start], texts, cut)  # raises with the reason
    if len(set(places)) < len(places):
        raise ValueError(f"{text!r} lists an option or item twice")
    return places


def _all_of(places: list[int], answer: Order) -> list[int]:
    if len(places) != len(answer.shown):
        raise ValueError(f"it orders {len(places)} of {len(answer.shown)} items; order all of them")
    return places


def _from_pairs(pairs: Sequence[Sequence[str]], answer: Order) -> list[int]:
    """The indices of the items in order, given pairs of an item and its number."""
    by_number: dict[int, int] = {}
    for pair in pairs:
        numbers = [int(found[1]) for one in pair if (found := _ORDINAL.fullmatch(one.strip()))]
        items = [one for one in pair if not _ORDINAL.fullmatch(one.strip())]
        if (len(items), len(numbers)) != (1, 1):
            raise ValueError(f"{' and '.join(map(repr, pair))} is not an item with its number")
        by_number[numbers[0]] = _place(items[0], answer.shown)
    if sorted(by_number) != list(range(1, len(answer.shown) + 1)):
        raise ValueError(
            f"the numbers {sorted(by_number)} are not the numbers 1 to {len(answer.shown)}, each used once"
        )
    return _all_of([by_number[number] for number in sorted(by_number)], answer)


def _parts(text: str) -> list[str]:
    return [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]


def _minutes(form: Form, text: str) -> dict[str, float]:
    found = re.findall(r"(\d+) (day|hour|min|sec)s?", text)
    return {form.student.id: sum(int(num) * _UNITS_MIN[unit] for num, unit in found)} if found else {}
