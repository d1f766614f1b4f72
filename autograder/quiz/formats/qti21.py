"""A QTI 2.1 package: a manifest, a test, an item for each question, and images.

Items score themselves, with the shares of `worldsize.quiz.mark`. Formulas are MathML, QTI's own notation, which
needs no script where the test is taken; `alttext` holds the LaTeX. A menu in a text shows plain text, with LaTeX as
written. Numbers are typed without a unit, which is printed next to the field. An essay is scored by a person; its
rubric is visible only to scorers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autograder.files import packed
from autograder.markdown.platform_markup import html_with_mathml as html
from autograder.markdown.platform_markup import line, put_in, tag, words
from autograder.quiz.formats.form_text import num_lines
from autograder.quiz.formats.platform_text import (
    bounds,
    distinct,
    gaps_of,
    identifier,
    mistake_tolerance,
    names_of,
    rubric_text,
    text_of,
    title_of,
)
from autograder.quiz.forms import Form
from worldsize.quiz import Variant
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase, Prose

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_QTI = "http://www.imsglobal.org/xsd/imsqti_v2p1"
_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_SCHEMA = f"{_QTI} http://www.imsglobal.org/xsd/qti/qtiv2p1/imsqti_v2p1.xsd"


def render(form: Form) -> bytes:
    """The form as the zip of a package."""
    test = f"test-{identifier(form.student.id)}"
    images = {variant.id: png(variant.picture) for variant in form.variants if variant.picture}
    files: dict[str, str | bytes] = {
        "imsmanifest.xml": _manifest(form, test, set(images)),
        f"{test}.xml": _test(form, test),
    }
    files |= {
        f"items/{variant.id}.xml": _item(name, variant)
        for name, variant in zip(names_of(form), form.variants, strict=True)
    }
    return packed(files | {f"items/images/{id}.png": image for id, image in images.items()})


def _manifest(form: Form, test: str, images: set[str]) -> str:
    resources = [
        tag(
            "resource",
            tag("file", href=f"{test}.xml"),
            *(tag("dependency", identifierref=identifier(variant.id)) for variant in form.variants),
            identifier=test,
            type="imsqti_test_xmlv2p1",
            href=f"{test}.xml",
        )
    ]
    for variant in form.variants:
        path = f"items/{variant.id}.xml"
        image = tag("file", href=f"items/images/{variant.id}.png") if variant.id in images else ""
        item = tag("file", href=path)
        resources.append(
            tag("resource", item, image, identifier=identifier(variant.id), type="imsqti_item_xmlv2p1", href=path)
        )
    return _XML + tag(
        "manifest",
        tag("metadata", tag("schema", "QTIv2.1 Package"), tag("schemaversion", "1.0.0")),
        tag("organizations"),
        tag("resources", *resources),
        identifier=f"manifest-{test}",
        xmlns="http://www.imsglobal.org/xsd/imscp_v1p1",
    )


def _test(form: Form, test: str) -> str:
    items = (
        tag("assessmentItemRef", identifier=identifier(variant.id), href=f"items/{variant.id}.xml")
        for variant in form.variants
    )
    section = tag("assessmentSection", *items, identifier="questions", title="Questions", visible="true")
    total = tag("sum", tag("testVariables", variableIdentifier="SCORE"))
    return _XML + tag(
        "assessmentTest",
        _declared("outcome", "SCORE", "single", "float", "0"),
        tag("testPart", section, identifier="all", navigationMode="nonlinear", submissionMode="simultaneous"),
        tag("outcomeProcessing", tag("setOutcomeValue", total, identifier="SCORE")),
        identifier=test,
        title=title_of(form),
        **_namespaces(),
    )


def _item(name: str, variant: Variant) -> str:
    parts, rubric = _Parts(), ""
    body = html(text_of(variant))
    if isinstance(variant.answer, Gaps):
        gaps = variant.answer.gaps
        body = put_in(body, [_gap(parts, f"RESPONSE-{gap}", gaps[gap], 1 / len(gaps)) for gap in gaps_of(variant)])
    if variant.picture:
        body += tag("p", tag("img", src=f"images/{variant.id}.png", alt=variant.picture.alt))
    if isinstance(variant.answer, Prose):
        rubric = tag("rubricBlock", tag("div", html(rubric_text(variant.answer))), view="scorer")
        body += _essay(parts, variant.answer)
    elif not isinstance(variant.answer, Gaps):
        body += _field(parts, variant.answer)
    if variant.feedback:
        answered = tag("or", *(tag("not", tag("isNull", _variable(name))) for name in parts.names))
        parts.add_feedback("general", variant.feedback, answered)
    return _XML + tag(
        "assessmentItem",
        *parts.declarations,
        _declared("outcome", "SCORE", "single", "float", "0"),
        _declared("outcome", "MAXSCORE", "single", "float", f"{variant.question.points:g}"),
        _declared("outcome", "FEEDBACK", "multiple", "identifier"),
        tag("itemBody", rubric, tag("div", body)),
        tag("responseProcessing", *parts.rules),
        *parts.feedback,
        identifier=identifier(variant.id),
        title=name,
        adaptive="false",
        timeDependent="false",
        **_namespaces(),
    )


@dataclass
class _Parts:
    """The declarations, rules and feedback of an item, collected while its body is written."""

    names: list[str] = field(default_factory=list)
    declarations: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    feedback: list[str] = field(default_factory=list)

    def declare(self, name: str, cardinality: str, base_type: str, *right: str, mapping: str = "") -> None:
        """Declare a response, with the right value unless a person scores it."""
        self.names.append(name)
        correct = tag("correctResponse", *(tag("value", words(value)) for value in right)) if right else ""
        self.declarations.append(
            tag("responseDeclaration", correct, mapping, identifier=name, cardinality=cardinality, baseType=base_type)
        )

    def score(self, condition: str, share: float) -> None:
        """Add a share of the point if this condition holds."""
        self.rules.append(_if(condition, _add_to_score(tag("baseValue", repr(share), baseType="float"))))

    def add_feedback(self, ident: str, markdown: str, condition: str) -> None:
        """Show feedback if this condition holds."""
        self.rules.append(_if(condition, self.feedback_rule(ident, markdown)))

    def feedback_rule(self, ident: str, markdown: str) -> str:
        """The rule that shows feedback."""
        content = tag("div", html(markdown))
        self.feedback.append(
            tag("modalFeedback", content, outcomeIdentifier="FEEDBACK", identifier=ident, showHide="show")
        )
        more = tag("multiple", _variable("FEEDBACK"), tag("baseValue", ident, baseType="identifier"))
        return tag("setOutcomeValue", more, identifier="FEEDBACK")


def _field(parts: _Parts, answer: Options | Amount | Phrase | Order) -> str:
    name = "RESPONSE"
    match answer:
        case Options(options=options):
            idents = _score_choices(parts, name, answer, 1)
            choices = (
                tag("simpleChoice", html(option.text), identifier=ident)
                for ident, option in zip(idents, options, strict=True)
            )
            num = "1" if answer.single else "0"  # 0 allows any number
            return tag("choiceInteraction", *choices, responseIdentifier=name, shuffle="false", maxChoices=num)
        case Order(shown=shown, places=places):
            parts.declare(name, "ordered", "identifier", *(f"I{place + 1}" for place in places))
            for number, place in enumerate(places, start=1):
                at = tag("index", _variable(name), n=number)
                here = tag("match", at, tag("baseValue", f"I{place + 1}", baseType="identifier"))
                parts.score(here, 1 / len(places))
            choices = (tag("simpleChoice", html(text), identifier=f"I{n}") for n, text in enumerate(shown, start=1))
            return tag("orderInteraction", *choices, responseIdentifier=name, shuffle="false")
        case _:
            unit = f" {words(answer.unit)}" if isinstance(answer, Amount) and answer.unit else ""
            return tag("p", _gap(parts, name, answer, 1) + unit)


def _essay(parts: _Parts, answer: Prose) -> str:
    parts.declare("RESPONSE", "single", "string")
    return tag("extendedTextInteraction", responseIdentifier="RESPONSE", expectedLines=num_lines(answer))


def _gap(parts: _Parts, name: str, gap: Options | Amount | Phrase, share: float) -> str:
    match gap:
        case Options(options=options):
            idents = _score_choices(parts, name, gap, share)
            choices = (
                tag("inlineChoice", words(line(option.text)), identifier=ident)
                for ident, option in zip(idents, options, strict=True)
            )
            return tag("inlineChoiceInteraction", *choices, responseIdentifier=name, shuffle="false")
        case Amount():
            parts.declare(name, "single", "float", repr(gap.value))
            _typed(parts, name, share, list(_numbers(name, gap)))
            return tag("textEntryInteraction", responseIdentifier=name, expectedLength="12")
        case Phrase():
            accepted = distinct(gap)
            parts.declare(name, "single", "string", accepted[0])
            right = tag("or", *(_same_words(name, text) for text in accepted))
            mistakes = [(_same_words(name, m.text), m.feedback) for m in gap.mistakes]
            _typed(parts, name, share, [(right, ""), *mistakes])
            return tag("textEntryInteraction", responseIdentifier=name, expectedLength="24")


def _score_choices(parts: _Parts, name: str, answer: Options, share: float) -> list[str]:
    """Add each option's share and feedback, and return the options' identifiers."""
    idents = [f"C{number}" for number in range(1, len(answer.options) + 1)]
    worth = share / len(answer.right)
    entries = [
        tag("mapEntry", mapKey=ident, mappedValue=repr(worth if option.correct else -worth))
        for ident, option in zip(idents, answer.options, strict=True)
        if option.correct or not answer.single
    ]
    mapping = tag("mapping", *entries, lowerBound="0", upperBound=repr(share), defaultValue="0")
    right = [idents[place] for place in sorted(answer.right)]
    parts.declare(name, "single" if answer.single else "multiple", "identifier", *right, mapping=mapping)
    parts.rules.append(_add_to_score(tag("mapResponse", identifier=name)))
    for ident, option in zip(idents, answer.options, strict=True):
        chosen = tag("baseValue", ident, baseType="identifier")
        condition = tag("match", _variable(name), chosen) if answer.single else tag("member", chosen, _variable(name))
        parts.add_feedback(f"{name}-{ident}", option.feedback, condition)
    return idents


def _typed(parts: _Parts, name: str, share: float, cases: list[tuple[str, str]]) -> None:
    """Add rules for cases of which the first match counts: the right answer, then the mistakes with their feedback."""
    (right, _), *mistakes = cases
    one = _add_to_score(tag("baseValue", repr(share), baseType="float"))
    rules = [tag("responseIf", right, one)]
    for number, (condition, feedback) in enumerate(mistakes, start=1):
        rules.append(tag("responseElseIf", condition, parts.feedback_rule(f"{name}-M{number}", feedback)))
    parts.rules.append(tag("responseCondition", *rules))


def _numbers(name: str, answer: Amount) -> Iterator[tuple[str, str]]:
    yield _near(name, answer.value, answer.tolerance), ""
    for mistake in answer.mistakes:
        yield _near(name, mistake.value, mistake_tolerance(answer, mistake)), mistake.feedback


def _near(name: str, value: float, tolerance: float) -> str:
    """A condition with bounds, because some platforms ignore the tolerance of `equal`."""
    low, high = (tag("baseValue", repr(bound), baseType="float") for bound in bounds(value, tolerance))
    return tag("and", tag("gte", _variable(name), low), tag("lte", _variable(name), high))


def _same_words(name: str, text: str) -> str:
    wanted = tag("baseValue", words(" ".join(text.split())), baseType="string")
    return tag("stringMatch", _variable(name), wanted, caseSensitive="false", substring="false")


def _add_to_score(more: str) -> str:
    return tag("setOutcomeValue", tag("sum", _variable("SCORE"), more), identifier="SCORE")


def _if(condition: str, rule: str) -> str:
    return tag("responseCondition", tag("responseIf", condition, rule))


def _variable(name: str) -> str:
    return tag("variable", identifier=name)


def _declared(kind: str, name: str, cardinality: str, base_type: str, value: str = "") -> str:
    default = tag("defaultValue", tag("value", value)) if value else ""
    return tag(f"{kind}Declaration", default, identifier=name, cardinality=cardinality, baseType=base_type)


def _namespaces() -> dict[str, str]:
    return {"xmlns": _QTI, "xmlns_xsi": _XSI, "xsi_schemaLocation": _SCHEMA}
