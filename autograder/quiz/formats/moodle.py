"""Moodle XML (https://docs.moodle.org/en/Moodle_XML_format): a category for each form, or for each slot of a class.

Shares are those of `worldsize.quiz.mark`. Ordering needs Moodle 4.4, which has the type built in, or its plugin; Moodle
shuffles the items. Cloze questions are embedded answers; a gap whose choices have formulas or markup is a column of
buttons, because a menu shows plain text. The rubric of an essay is its information for graders, which students do not
see.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from autograder.markdown.platform_markup import html, is_plain, line, put_in, tag, words
from autograder.quiz.formats.form_text import num_lines
from autograder.quiz.formats.platform_text import distinct, gaps_of, mistake_tolerance, names_of, rubric_text, text_of
from autograder.quiz.forms import Form
from worldsize.quiz import Variant
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Phrase, Prose

_TYPES = {
    Options: "multichoice",
    Amount: "numerical",
    Phrase: "shortanswer",
    Order: "ordering",
    Gaps: "cloze",
    Prose: "essay",
}


def render(form: Form) -> bytes:
    """The form as Moodle XML."""
    return _file([_category(form.blueprint.title, form.student.id), *map(_question, names_of(form), form.variants)])


def render_pools(title: str, slots: Sequence[Sequence[Variant]]) -> bytes:
    """A category for each slot, from which a quiz takes a random question, as Moodle XML."""
    parts = []
    for place, variants in enumerate(slots, start=1):
        parts.append(_category(title, f"slot {place:02}"))
        parts += [_question(f"{place:02} {variant.id}", variant) for variant in variants]
    return _file(parts)


def _category(*path: str) -> str:
    name = "/".join(part.replace("/", "//") for part in path)
    return tag("question", tag("category", _text(f"$course$/top/{name}")), type="category")


def _file(parts: Sequence[str]) -> bytes:
    content = "\n".join(parts)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<quiz>\n{content}\n</quiz>\n'.encode()


def _question(name: str, variant: Variant) -> str:
    answer = variant.answer
    text, files = _html_of(variant), ""
    if variant.picture:
        text += tag("p", tag("img", src="@@PLUGINFILE@@/figure.png", alt=variant.picture.alt))
        data = base64.b64encode(png(variant.picture)).decode()
        files = tag("file", data, name="figure.png", path="/", encoding="base64")
    gaps = len(answer.gaps) if isinstance(answer, Gaps) else None
    return tag(
        "question",
        tag("name", _text(name)),
        tag("questiontext", _text(text), files, format="html"),
        tag("generalfeedback", _text(html(variant.feedback)), format="html"),
        tag("defaultgrade", f"{variant.question.points:g}")
        if gaps is None
        else "",  # for a cloze question, Moodle computes it as the sum over the gaps
        tag("penalty", "0"),
        tag("hidden", "0"),
        tag("idnumber", words(variant.id)),
        _fields(answer),
        type=_TYPES[type(answer)],
    )


def _html_of(variant: Variant) -> str:
    if not isinstance(variant.answer, Gaps):
        return html(text_of(variant))
    # a brace could be read as the start of an embedded answer
    text = html(text_of(variant)).replace("{", "&#123;").replace("}", "&#125;")
    return put_in(text, [_embedded(variant.answer.gaps[name]) for name in gaps_of(variant)])


def _fields(answer: Answer) -> str:
    match answer:
        case Options():
            return _choices(answer)
        case Amount():
            return _number(answer)
        case Phrase():
            return _phrase(answer)
        case Order():
            return _order(answer)
        case Prose():
            return _essay(answer)
        case _:
            return ""


def _choices(answer: Options) -> str:
    share = 100 / len(answer.right)
    wrong = 0 if answer.single else -share
    return (
        tag("single", "true" if answer.single else "false")
        + tag("shuffleanswers", "false")  # the form has shuffled them
        + tag("answernumbering", "ABCD")
        + _no_combined_feedback()
        + "".join(
            _answer(html(option.text), share if option.correct else wrong, option.feedback, format="html")
            for option in answer.options
        )
    )


def _number(answer: Amount) -> str:
    content = _answer(repr(answer.value), 100, "", tag("tolerance", repr(answer.tolerance)))
    for mistake in answer.mistakes:
        tolerance = tag("tolerance", repr(mistake_tolerance(answer, mistake)))
        content += _answer(repr(mistake.value), 0, mistake.feedback, tolerance)
    if answer.unit:
        content += tag("units", tag("unit", tag("multiplier", "1"), tag("unit_name", words(answer.unit))))
    # a unit may be typed and is not graded
    return (
        content
        + tag("unitgradingtype", "0")
        + tag("unitpenalty", "0")
        + tag("showunits", "0" if answer.unit else "3")
        + tag("unitsleft", "0")
    )


def _phrase(answer: Phrase) -> str:
    return (
        tag("usecase", "0")
        + "".join(_answer(_without_wildcards(text), 100, "") for text in distinct(answer))
        + "".join(_answer(_without_wildcards(m.text), 0, m.feedback) for m in answer.mistakes)
    )


def _order(answer: Order) -> str:
    return (
        tag("layouttype", "VERTICAL")
        + tag("selecttype", "ALL")
        + tag("selectcount", "0")
        + tag("gradingtype", "ABSOLUTE_POSITION")
        + tag("showgrading", "SHOW")
        + tag("numberingstyle", "none")
        + _no_combined_feedback()
        + "".join(
            tag("answer", _text(html(text)), fraction=f"{place}.0000000", format="html")
            for place, text in enumerate(answer.in_order, start=1)
        )
    )


def _essay(answer: Prose) -> str:
    return (
        tag("responseformat", "editor")
        + tag("responserequired", "0")
        + tag("responsefieldlines", str(num_lines(answer)))
        + tag("attachments", "0")
        + tag("attachmentsrequired", "0")
        + tag("graderinfo", _text(html(rubric_text(answer))), format="html")
        + tag("responsetemplate", _text(""), format="html")
    )


def _embedded(gap: Options | Amount | Phrase) -> str:
    match gap:
        case Options(options=options):
            are_plain = all(is_plain(option.text) for option in options)
            kind = "MULTICHOICE" if are_plain else "MULTICHOICE_V"
            given = [
                (
                    100 if option.correct else 0,
                    words(line(option.text)) if are_plain else html(option.text),
                    html(option.feedback),
                )
                for option in options
            ]
        case Amount():
            kind = "NUMERICAL"
            given = [(100, f"{gap.value!r}:{gap.tolerance!r}", "")]
            given += [(0, f"{m.value!r}:{mistake_tolerance(gap, m)!r}", html(m.feedback)) for m in gap.mistakes]
        case Phrase():
            kind = "SHORTANSWER"
            given = [(100, _without_wildcards(text), "") for text in distinct(gap)]
            given += [(0, _without_wildcards(m.text), html(m.feedback)) for m in gap.mistakes]
    alternatives = (
        f"%{share}%{text if kind == 'NUMERICAL' else _quoted(text)}" + (f"#{_quoted(feedback)}" if feedback else "")
        for share, text, feedback in given
    )
    return f"{{1:{kind}:{'~'.join(alternatives)}}}"


def _quoted(text: str) -> str:
    """Escape text within an embedded answer, where special characters must be entities; Moodle decodes it once."""
    text = text.replace("&", "&amp;")
    return re.sub(r"[~#{}\\\"<>\n\r]", lambda found: f"&#{ord(found[0])};", text)


def _answer(text: str, fraction: float, feedback: str, *more: str, format: str = "moodle_auto_format") -> str:
    said = tag("feedback", _text(html(feedback)), format="html")
    return tag("answer", _text(text), said, *more, fraction=f"{fraction:.5f}".rstrip("0").rstrip("."), format=format)


def _no_combined_feedback() -> str:
    names = ("correctfeedback", "partiallycorrectfeedback", "incorrectfeedback")
    return "".join(tag(name, _text(""), format="html") for name in names)


def _without_wildcards(text: str) -> str:
    return text.replace("*", r"\*")


def _text(text: str) -> str:
    return tag("text", words(text))
