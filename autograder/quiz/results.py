"""Writing a marked quiz to a folder: scores, a feedback page for each student, and statistics of the questions."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.files import neutral
from autograder.judging.report import format_points
from autograder.quiz import page_html
from autograder.quiz.atomic_folder import in_place_of
from autograder.quiz.hand_points import HEAD, mark_of
from autograder.quiz.marked_forms import MarkedAnswer, MarkedForm
from autograder.quiz.responses import Problem, Responses
from autograder.quiz.statistics import EASY, FEWEST, HARD, LEVEL, VARIANTS_LEVEL, ItemStatistics, items, overview
from worldsize.quiz import Marked
from worldsize.quiz.marking import mark_answer
from worldsize.quiz.variant import Gaps, Options

SCORES, ANSWERS, ITEMS, REPORT, FEEDBACK = "scores.csv", "answers.csv", "items.csv", "items.html", "feedback"
UNREADABLE, BY_HAND = "unreadable.csv", "by_hand.csv"
_OURS = {SCORES, ANSWERS, ITEMS, REPORT, FEEDBACK, UNREADABLE, BY_HAND}
_OUTCOMES = {
    "good": "Right",
    "part": "Partly right",
    "bad": "Not right",
    "open": "No answer",
    "waiting": "Waiting to be graded by hand",
}
_SIGNS = {"good": "✓", "part": "◐", "bad": "✗", "open": "–", "waiting": "…"}


@dataclass(frozen=True)
class AnswerFeedback:
    """One answer as the student's page shows it."""

    answered: MarkedAnswer
    style: str
    problem: str

    @property
    def kind(self) -> str:
        """The kind of question."""
        return page_html.kind(self.answered.variant.answer)

    @property
    def sign(self) -> str:
        """A sign for the outcome that is legible without colour."""
        return _SIGNS[self.style]

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        if self.kind == "essay" and not self.answered.is_waiting:
            return "Graded by hand"
        return _OUTCOMES[self.style]

    @property
    def earned(self) -> str:
        """The points as text; a dash while the answer waits to be graded."""
        return "–" if self.answered.is_waiting else format_points(self.answered.points)

    @property
    def written(self) -> str:
        """The response as the student wrote it."""
        return self.answered.given.written.strip() if self.answered.given else ""

    @property
    def chosen(self) -> list[int]:
        """The indices of the chosen options."""
        return [] if self.answered.is_empty or self.answered.given is None else self.answered.given.response

    @property
    def gaps(self) -> list[str]:
        """How each gap was filled: a sign and words; empty for other kinds."""
        answer = self.answered.variant.answer
        if not isinstance(answer, Gaps):
            return []
        given = self.answered.given.response if self.answered.given and not self.answered.is_empty else {}
        styles = [_style_of(mark_answer(gap, given.get(name)), name not in given) for name, gap in answer.gaps.items()]
        return [f"({place}) {_SIGNS[style]} {_OUTCOMES[style].lower()}" for place, style in enumerate(styles, start=1)]

    @property
    def why(self) -> list[str]:
        """The bank's feedback: on each chosen option and each missed right one, otherwise on the question."""
        variant, feedback = self.answered.variant, list(self.answered.marked.feedback)
        if self.answered.is_waiting:
            return []
        if isinstance(variant.answer, Options):
            missed = [variant.answer.options[place] for place in sorted(variant.answer.right - set(self.chosen))]
            return feedback + [f"**{option.text}**\n\n{option.feedback}" for option in missed]
        return feedback or [variant.feedback]


def write_marked(
    marked_forms: Sequence[MarkedForm], responses: Responses, out: Path, *, force: bool = False
) -> list[ItemStatistics]:
    """The statistics of each question, after writing all results to `out`, which appears when it is complete.

    Raises:
        ValueError: `out` holds other files, or (without `force`) marks; or no student submitted anything.
    """
    _refuse_to_destroy(out, force)
    found = items(marked_forms)
    with in_place_of(out) as folder:
        _write_csv(folder / SCORES, _scores(marked_forms))
        _write_csv(folder / ANSWERS, _answers(marked_forms))
        _write_csv(folder / ITEMS, _items(found))
        _write_csv(folder / UNREADABLE, _unreadable(responses))
        _write_csv(folder / BY_HAND, _by_hand(marked_forms))
        (folder / REPORT).write_text(report(marked_forms, found), encoding="utf-8")
        (folder / FEEDBACK).mkdir()
        for marked_form in marked_forms:
            if marked_form.is_handed_in:
                page = feedback_page(marked_form, responses.problems)
                (folder / FEEDBACK / f"{marked_form.form.student.id}.html").write_text(page, encoding="utf-8")
    return found


def feedback_page(marked_form: MarkedForm, problems: Sequence[Problem] = ()) -> str:
    """A student's page: the questions, the student's answers, the right answers and why. It names no other student."""
    return page_html.environment.get_template("quiz/feedback.html.j2").render(
        title=marked_form.form.blueprint.title,
        student=marked_form.form.student,
        pass_fraction=marked_form.form.blueprint.pass_fraction,
        marked_form=marked_form,
        answers=feedback_on(marked_form, problems),
        has_essays=any(variant.question.kind == "essay" for variant in marked_form.form.variants),
    )


def feedback_on(marked: MarkedForm, problems: Sequence[Problem]) -> list[AnswerFeedback]:
    """The feedback on each answer of a student."""
    mine = {one.number: one.reason for one in problems if one.student == marked.form.student.id and one.number}
    return [
        AnswerFeedback(one, _style_of(one.marked, one.is_empty), mine.get(one.number, "")) for one in marked.answered
    ]


def report(marked_forms: Sequence[MarkedForm], found: Sequence[ItemStatistics]) -> str:
    """The page about the questions, for instructors; it names no student."""
    return page_html.environment.get_template("quiz/items.html.j2").render(
        overview=overview(marked_forms),
        items=found,
        fewest=FEWEST,
        easy=EASY,
        hard=HARD,
        level=LEVEL,
        variants_level=VARIANTS_LEVEL,
        is_judged=any(item.num_asked >= FEWEST for item in found),
        pc=lambda fraction: f"{fraction:.0%}",
        num=lambda value: "–" if value is None else f"{value:.2f}",
    )


def _style_of(marked: Marked, is_empty: bool) -> str:
    if marked.is_waiting:
        return "waiting"
    if is_empty and not marked.share:
        return "open"
    return "good" if marked.is_right else "part" if marked.share else "bad"


def _scores(marked_forms: Sequence[MarkedForm]) -> Iterator[Sequence[object]]:
    most = max(len(marked_form.answered) for marked_form in marked_forms)
    yield ["student", "name", "status", "points", "out_of", "percent", "passed", "minutes"] + [
        f"question_{number}" for number in range(1, most + 1)
    ]
    for marked_form in marked_forms:
        student, out_of = marked_form.form.student, format_points(marked_form.out_of)
        if not marked_form.is_handed_in:
            # the course decides whether a missing form counts as zero: it knows due dates and excuses
            yield [student.id, student.name, "not handed in", "", out_of, "", "", ""] + [""] * most
            continue
        result = ["waiting to be graded by hand", "", out_of, "", ""]
        if not marked_form.num_waiting:
            passed = "yes" if marked_form.is_passed else "no"
            points = format_points(marked_form.points)
            result = ["marked", points, out_of, f"{100 * marked_form.fraction:.1f}", passed]
        yield [
            student.id,
            student.name,
            *result,
            "" if marked_form.minutes is None else format_points(marked_form.minutes),
            *("" if one.is_waiting else f"{one.points:.4g}" for one in marked_form.answered),
            *[""] * (most - len(marked_form.answered)),
        ]


def _answers(marked_forms: Sequence[MarkedForm]) -> Iterator[Sequence[object]]:
    yield ["student", "number", "question", "variant", "response", "share", "misconceptions"]
    for marked_form in marked_forms:
        for one in marked_form.answered if marked_form.is_handed_in else ():
            written = one.given.written if one.given else ""
            yield [
                marked_form.form.student.id,
                one.number,
                one.variant.question.id,
                one.variant.id,
                written,
                "" if one.is_waiting else f"{one.marked.share:.4g}",
                "; ".join(one.marked.misconceptions),
            ]


def _by_hand(marked_forms: Sequence[MarkedForm]) -> Iterator[Sequence[object]]:
    """A row for each essay of the students who submitted, with the points given so far."""
    yield HEAD
    for marked_form in marked_forms:
        for one in marked_form.answered if marked_form.is_handed_in else ():
            question, written = one.variant.question, one.given.written if one.given else ""
            if question.kind != "essay":
                continue
            points = "" if one.is_waiting else f"{one.points:g}"
            mark, out_of = mark_of(one.variant, written), format_points(question.points)
            yield [marked_form.form.student.id, one.number, question.id, written, points, out_of, one.comment, mark]


def _items(found: Sequence[ItemStatistics]) -> Iterator[Sequence[object]]:
    yield [
        *("question", "week", "kind", "difficulty", "asked", "empty", "facility", "deviation", "discrimination"),
        *("upper_lower", "variants_by", "variants_p", "flags"),
    ]
    for item in found:
        question, variants = item.question, item.variants
        yield [
            *(question.id, question.week, question.kind, question.difficulty, item.num_asked, item.num_empty),
            f"{item.facility:.4f}",
            f"{item.deviation:.4f}",
            "" if item.discrimination is None else f"{item.discrimination:.4f}",
            "" if item.upper_lower is None else f"{item.upper_lower:.4f}",
            variants.by if variants else "",
            "" if variants is None or variants.p is None else f"{variants.p:.3g}",
            "; ".join(dict.fromkeys(flag.name for flag in item.flags)),
        ]


def _unreadable(responses: Responses) -> Iterator[Sequence[object]]:
    yield ["where", "student", "number", "reason"]
    for one in (*responses.problems, *responses.strangers):
        yield [one.where, one.student, one.number or "", one.reason]


def _write_csv(to: Path, lines: Iterable[Sequence[object]]) -> None:
    # if people edit the file: with a byte order mark, from which spreadsheets recognise UTF-8
    with to.open("w", newline="", encoding="utf-8-sig" if to.name == BY_HAND else "utf-8") as file:
        # escape only texts: our numbers may begin with a minus, and formulas can come only from other people
        csv.writer(file).writerows([cell if _is_number(cell) else neutral(cell) for cell in line] for line in lines)


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _refuse_to_destroy(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is not a folder: name another one.")
    there = {path.name for path in out.iterdir()}
    if others := sorted(there - _OURS):
        raise ValueError(f"{out} holds {others[0]}, which is not part of a marked quiz: name a new or an empty folder.")
    if there and not force:
        raise ValueError(f"{out} holds marks already: name another folder, or replace them with --force.")
