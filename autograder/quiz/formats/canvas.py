r"""A QTI 1.2 package as Canvas writes and reads it ("Import Course Content", "QTI .zip file").

Canvas reads the kind of a question from `question_type`. Its rules for partial credit are those of
`worldsize.quiz.mark`: right choices less wrong ones, equal parts for pairs and for blanks. Kinds that it lacks become
the nearest kind that it has:

- items to put in order are matched with their positions;
- a cloze text is `multiple_dropdowns_question` where all gaps are choices, and `fill_in_multiple_blanks_question`
  otherwise; there a gap of choices shows them with letters, and the student types the letter or the text;
- Canvas compares the blanks of a text as words: a number is right there if it is one of up to three digits within
  the tolerance, with a plain decimal point; a question that asks for one number has its full tolerance;
- every answer that a package lists for a number or a word counts as right in Canvas, so all feedback on expected
  mistakes goes into the comment on a wrong answer;
- an essay is `essay_question`; Canvas does not import rubrics with a quiz, so the rubric is only in the key.

Formulas are between `\(` and `\)`, which Canvas renders; menus show plain text, with LaTeX as written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autograder.files import packed
from autograder.markdown.platform_markup import html, line, put_in, tag, words
from autograder.quiz.formats.platform_text import (
    bounds,
    decimal,
    distinct,
    gaps_of,
    identifier,
    names_of,
    spellings,
    text_of,
    title_of,
)
from autograder.quiz.forms import Form
from autograder.quiz.key import letter
from worldsize.quiz import Variant
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase, Prose
from worldsize.units import significant

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


@dataclass(frozen=True)
class _Item:
    """The parts of a question: its type, its text and fields, the conditions for points, comments by their idents."""

    kind: str
    text: str
    fields: str
    conditions: Iterable[str]
    comments: dict[str, str]


def render(form: Form) -> bytes:
    """Write the form as a zipped package: manifest, questions, settings and images."""
    name = identifier(form.student.id)
    named = zip(names_of(form), form.variants, strict=True)
    items = [_item(variant, place, words, f"{name}-{variant.id}") for place, (words, variant) in enumerate(named, 1)]
    return _package(f"quiz-{name}", title_of(form), form.out_of, items, form.variants)


def render_groups(title: str, slots: Sequence[Sequence[Variant]]) -> bytes:
    """A quiz with a question group for each slot, of which Canvas picks one question, as the zip of a package.

    Source: `add_group` in `lib/cc/qti/qti_generator.rb` of instructure/canvas-lms, read in November 2026.
    """
    quiz = f"quiz-{identifier(title)}"
    groups, number = [], 0
    for place, variants in enumerate(slots, start=1):
        points = variants[0].question.points
        picked = tag("selection_number", "1") + tag("selection_extension", tag("points_per_item", repr(float(points))))
        items = []
        for variant in variants:
            number += 1
            items.append(_item(variant, number, f"{place:02} {variant.id}", f"slot{place:02}-{variant.id}"))
        ordering = tag("selection_ordering", tag("selection", picked))
        groups.append(tag("section", ordering, *items, ident=f"group-{place:02}", title=f"Slot {place:02}"))
    out_of = sum(variants[0].question.points for variants in slots)
    return _package(quiz, title, out_of, groups, [variant for variants in slots for variant in variants])


def _package(quiz: str, title: str, out_of: float, parts: Sequence[str], variants: Sequence[Variant]) -> bytes:
    images = {variant.id: png(variant.picture) for variant in variants if variant.picture}
    files: dict[str, str | bytes] = {
        "imsmanifest.xml": _manifest(quiz, list(images)),
        f"{quiz}/{quiz}.xml": _assessment(quiz, title, parts),
        f"{quiz}/assessment_meta.xml": _settings(quiz, title, out_of),
    }
    return packed(files | {f"images/{id}.png": image for id, image in images.items()})


def _manifest(quiz: str, images: Sequence[str]) -> str:
    resources = [
        tag(
            "resource",
            tag("file", href=f"{quiz}/{quiz}.xml"),
            tag("dependency", identifierref=f"{quiz}-meta"),
            identifier=quiz,
            type="imsqti_xmlv1p2",
        ),
        tag(
            "resource",
            tag("file", href=f"{quiz}/assessment_meta.xml"),
            identifier=f"{quiz}-meta",
            type="associatedcontent/imscc_xmlv1p1/learning-application-resource",
            href=f"{quiz}/assessment_meta.xml",
        ),
    ]
    resources += [
        tag("resource", tag("file", href=path), identifier=f"image-{id}", type="webcontent", href=path)
        for id in images
        if (path := f"images/{id}.png")
    ]
    return _XML + tag(
        "manifest",
        tag("metadata", tag("schema", "IMS Content"), tag("schemaversion", "1.1.3")),
        tag("organizations"),
        tag("resources", *resources),
        identifier=f"manifest-{quiz}",
        xmlns="http://www.imsglobal.org/xsd/imsccv1p1/imscp_v1p1",
    )


def _settings(quiz: str, title: str, out_of: float) -> str:
    return _XML + tag(
        "quiz",
        tag("title", words(title)),
        tag("description"),
        tag("shuffle_answers", "false"),  # the form has already shuffled them
        tag("scoring_policy", "keep_highest"),
        tag("quiz_type", "assignment"),
        tag("points_possible", repr(float(out_of))),
        tag("show_correct_answers", "false"),
        tag("allowed_attempts", "1"),
        tag("available", "false"),  # until the instructor publishes it
        identifier=quiz,
        xmlns="http://canvas.instructure.com/xsd/cccv1p0",
    )


def _assessment(quiz: str, title: str, parts: Sequence[str]) -> str:
    return _XML + tag(
        "questestinterop",
        tag(
            "assessment",
            tag("qtimetadata", _metadata("cc_maxattempts", "1")),
            tag("section", *parts, ident="root_section"),
            ident=quiz,
            title=title,
        ),
        xmlns="http://www.imsglobal.org/xsd/ims_qtiasiv1p2",
    )


def _item(variant: Variant, place: int, name: str, ident: str) -> str:
    item = _described(variant, _Numbers(place))
    text = item.text
    if variant.picture:
        source = f"$IMS-CC-FILEBASE$/images/{variant.id}.png"
        text += tag("p", tag("img", src=source, alt=variant.picture.alt))
    comments = {key: comment for key, comment in item.comments.items() if comment}
    shown = []
    if variant.feedback:
        comments["general_fb"] = html(variant.feedback)
        shown = [tag("respcondition", tag("conditionvar", tag("other")), _display("general_fb"), continue_="Yes")]
    worth = f"{variant.question.points:g}"
    score = tag("decvar", maxvalue="100", minvalue="0", varname="SCORE", vartype="Decimal")
    return tag(
        "item",
        tag(
            "itemmetadata",
            tag("qtimetadata", _metadata("question_type", item.kind), _metadata("points_possible", worth)),
        ),
        tag("presentation", _material(text), item.fields),
        tag("resprocessing", tag("outcomes", score), *shown, *item.conditions),
        *(tag("itemfeedback", tag("flow_mat", _material(comment)), ident=key) for key, comment in comments.items()),
        ident=ident,
        title=name,
    )


class _Numbers:
    """Generator of answer identifiers, unique in a form: numbers, because Canvas keeps no others."""

    def __init__(self, place: int) -> None:
        self._last = place * 1000

    def next(self) -> str:
        self._last += 1
        return str(self._last)


def _described(variant: Variant, numbers: _Numbers) -> _Item:
    match variant.answer:
        case Options():
            return _choices(variant, variant.answer, numbers)
        case Amount():
            return _number(variant, variant.answer)
        case Phrase():
            return _phrase(variant, variant.answer)
        case Order():
            return _order(variant, variant.answer, numbers)
        case Gaps():
            return _gaps(variant, variant.answer, numbers)
        case Prose():
            return _essay(variant)


def _choices(variant: Variant, answer: Options, numbers: _Numbers) -> _Item:
    idents = [numbers.next() for _ in answer.options]
    labels = [_label(ident, html(option.text)) for ident, option in zip(idents, answer.options, strict=True)]
    fields = tag(
        "response_lid",
        tag("render_choice", *labels),
        ident="response1",
        rcardinality="Single" if answer.single else "Multiple",
    )
    feedback = [
        tag("respcondition", tag("conditionvar", _equal("response1", ident)), _display(f"{ident}_fb"), continue_="Yes")
        for ident in idents
    ]
    if answer.single:
        right = _equal("response1", idents[min(answer.right)])
    else:
        chosen = (_equal("response1", ident) for ident in idents)
        right = tag("and", *(one if place in answer.right else tag("not", one) for place, one in enumerate(chosen)))
    return _Item(
        "multiple_choice_question" if answer.single else "multiple_answers_question",
        html(text_of(variant)),
        fields,
        [*feedback, _scored(right)],
        {f"{ident}_fb": html(option.feedback) for ident, option in zip(idents, answer.options, strict=True)},
    )


def _number(variant: Variant, answer: Amount) -> _Item:
    low, high = map(decimal, bounds(answer.value, answer.tolerance))
    near = tag("and", tag("vargte", low, respident="response1"), tag("varlte", high, respident="response1"))
    right = tag("or", _equal("response1", decimal(answer.value)), near)
    comment = _about_mistakes((_shown(m.value, answer), m.feedback) for m in answer.mistakes)
    return _Item(
        "numerical_question",
        html(text_of(variant)),
        tag(
            "response_str",
            tag("render_fib", tag("response_label", ident="answer1"), fibtype="Decimal"),
            ident="response1",
            rcardinality="Single",
        ),
        [_scored(right), *_if_wrong(comment)],
        {"general_incorrect_fb": comment},
    )


def _phrase(variant: Variant, answer: Phrase) -> _Item:
    comment = _about_mistakes((m.text, m.feedback) for m in answer.mistakes)
    right = "".join(_equal("response1", words(text)) for text in distinct(answer))
    return _Item(
        "short_answer_question",
        html(text_of(variant)),
        tag(
            "response_str",
            tag("render_fib", tag("response_label", ident="answer1", rshuffle="No")),
            ident="response1",
            rcardinality="Single",
        ),
        [_scored(right), *_if_wrong(comment)],
        {"general_incorrect_fb": comment},
    )


def _order(variant: Variant, answer: Order, numbers: _Numbers) -> _Item:
    places = [numbers.next() for _ in answer.shown]
    fields, conditions = [], []
    for shown, text in enumerate(answer.shown):
        ident = f"response_{numbers.next()}"
        labels = [_label(label, str(place), "text/plain") for place, label in enumerate(places, start=1)]
        fields.append(tag("response_lid", _material(html(text)), tag("render_choice", *labels), ident=ident))
        conditions.append(_added(ident, places[answer.places.index(shown)], len(places)))
    return _Item("matching_question", html(text_of(variant)), "".join(fields), conditions, {})


def _essay(variant: Variant) -> _Item:
    field = tag(
        "response_str",
        tag("render_fib", tag("response_label", ident="answer1", rshuffle="No")),
        ident="response1",
        rcardinality="Single",
    )
    ungraded = tag("respcondition", tag("conditionvar", tag("other")), continue_="No")
    return _Item("essay_question", html(text_of(variant)), field, [ungraded], {})


def _gaps(variant: Variant, answer: Gaps, numbers: _Numbers) -> _Item:
    names = gaps_of(variant)
    are_menus = all(isinstance(gap, Options) for gap in answer.gaps.values())
    blanks, fields, conditions, comments = [], [], [], []
    for name in names:
        gap, respident = answer.gaps[name], f"response_{name}"
        offered = _offered(gap, are_menus)
        labels = [(numbers.next(), text) for text, _ in offered]
        shown = [_label(ident, words(text), "text/plain") for ident, text in labels]
        fields.append(tag("response_lid", _material(name, "text/plain"), tag("render_choice", *shown), ident=respident))
        conditions += [
            _added(respident, ident, len(names))
            for (ident, _), (_, is_right) in zip(labels, offered, strict=True)
            if is_right
        ]
        blanks.append(f"[{name}]" + ("" if are_menus or not isinstance(gap, Options) else _listed(gap)))
        comments.append(_about_mistakes(_mistakes(gap)))
    return _Item(
        "multiple_dropdowns_question" if are_menus else "fill_in_multiple_blanks_question",
        put_in(html(text_of(variant)), blanks),
        "".join(fields),
        conditions + list(_if_wrong("".join(comments))),
        {"general_incorrect_fb": "".join(comments)},
    )


def _offered(gap: Options | Amount | Phrase, are_menus: bool) -> list[tuple[str, bool]]:
    """The texts listed for a gap, and whether each is right: all choices of a menu, the right ones of a blank."""
    match gap:
        case Options(options=options) if are_menus:
            return [(line(option.text), option.correct) for option in options]
        case Options(options=options):
            right = [(place, option) for place, option in enumerate(options) if option.correct]
            return [(text, True) for place, option in right for text in (letter(place), line(option.text))]
        case Amount():
            return [(text, True) for text in spellings(gap)]
        case Phrase():
            return [(text, True) for text in distinct(gap)]


def _listed(gap: Options) -> str:
    return words(" (" + ", ".join(f"{letter(n)}: {line(option.text)}" for n, option in enumerate(gap.options)) + ")")


def _mistakes(gap: Options | Amount | Phrase) -> Iterator[tuple[str, str]]:
    match gap:
        case Options(options=options):
            yield from ((line(option.text), option.feedback) for option in options if not option.correct)
        case Amount():
            yield from ((_shown(m.value, gap), m.feedback) for m in gap.mistakes)
        case Phrase():
            yield from ((m.text, m.feedback) for m in gap.mistakes)


def _shown(value: float, answer: Amount) -> str:
    return f"{significant(value, answer.digits)} {answer.unit}".strip()


def _about_mistakes(mistakes: Iterable[tuple[str, str]]) -> str:
    return "".join(tag("p", tag("strong", words(text))) + html(feedback) for text, feedback in mistakes)


def _if_wrong(comment: str) -> Iterator[str]:
    if comment:
        yield tag("respcondition", tag("conditionvar", tag("other")), _display("general_incorrect_fb"), continue_="Yes")


def _scored(condition: str) -> str:
    score = tag("setvar", "100", action="Set", varname="SCORE")
    return tag("respcondition", tag("conditionvar", condition), score, continue_="No")


def _added(respident: str, ident: str, num_parts: int) -> str:
    score = tag("setvar", f"{100 / num_parts:.2f}", action="Add", varname="SCORE")
    return tag("respcondition", tag("conditionvar", _equal(respident, ident)), score)


def _equal(respident: str, text: str) -> str:
    return tag("varequal", text, respident=respident)


def _display(ident: str) -> str:
    return tag("displayfeedback", feedbacktype="Response", linkrefid=ident)


def _label(ident: str, text: str, kind: str = "text/html") -> str:
    return tag("response_label", _material(text, kind), ident=ident)


def _material(text: str, kind: str = "text/html") -> str:
    content = words(text) if kind == "text/html" else text
    return tag("material", tag("mattext", content, texttype=kind))


def _metadata(label: str, entry: str) -> str:
    return tag("qtimetadatafield", tag("fieldlabel", label), tag("fieldentry", entry))
