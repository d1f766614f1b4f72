"""A form and the key of all forms as PDF, typeset by Typst; the same form always gives the same bytes."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import typst

from autograder.judging.report import format_points
from autograder.markdown import bank_text
from autograder.markdown.typst_source import escaped, quoted
from autograder.quiz.formats.form_text import gap_hints, instruction, lettered, num_lines, terms, who
from autograder.quiz.formats.format import Format
from autograder.quiz.formats.key_text import Explained, Remark, explained
from autograder.quiz.forms import Form
from autograder.quiz.key import printed
from worldsize.quiz import Variant
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Gaps, Options, Phrase, Prose, TimelinePicture

Paper = Literal["a4", "us-letter"]
_ACCESSIBLE: Any = {"pdf_standards": "ua-1"}  # tagged PDF, with alternative text for pictures and formulas
_REMEMBERED = 10  # documents for which Typst keeps an unused cache entry
_NO_FONT = re.compile(r'the text `"(.+?)"` could not be displayed', re.DOTALL)
_STYLE = Path(__file__).parents[2] / "templates" / "quiz.typ"


def on(paper: Paper) -> Format:
    """The PDF format with this paper size."""
    return Format("pdf", ".pdf", partial(render, paper=paper), partial(key, paper=paper))


def render(form: Form, paper: Paper = "a4") -> bytes:
    """The form as a PDF file."""
    title = form.blueprint.title
    lines = [_sheet(title, who(form), paper), f"#begin({quoted(title)}, {quoted(who(form))}, {quoted(terms(form))})"]
    lines += [line for place, variant in enumerate(form.variants, 1) for line in _question(place, variant)]
    return _compiled(lines, form.variants)


def key(forms: Sequence[Form], paper: Paper = "a4") -> bytes:
    """The answers of all forms, and the explanation of every question, as a PDF file."""
    title, found = forms[0].blueprint.title, explained(forms)
    num_forms = f"{len(forms)} form{'' if len(forms) == 1 else 's'}"
    lines = [_sheet(title, "key", paper), f'#begin({quoted(f"{title}: key")}, "", {quoted(num_forms)})']
    lines += ["#heading(level: 2, text(13pt)[Answers by student])"]
    for form in forms:
        given = ", ".join(f"[{escaped(printed(variant.answer))}]" for variant in form.variants)
        lines.append(f"#answers({quoted(who(form))}, {given})")
    lines += ["#pagebreak()", "#heading(level: 2, text(13pt)[Every question explained])"]
    lines += [line for one in found for line in _explained(one)]
    return _compiled(lines, [one.variant for one in found])


def _sheet(title: str, about: str, paper: Paper) -> str:
    return f"#show: sheet.with(title: {quoted(title)}, about: {quoted(about)}, paper: {quoted(paper)})"


def _question(place: int, variant: Variant) -> Iterator[str]:
    answer = variant.answer
    yield f"#question({place})["
    yield from _asked(variant)
    yield f"#todo({quoted(instruction(answer))})"
    if offered := lettered(answer):
        mark = ("round" if answer.single else "square") if isinstance(answer, Options) else "none"
        yield f'#offered("{mark}", {_contents(offered)})'
    for gap, what, among in gap_hints(variant):
        yield f"#hint({gap}, {quoted(what)}{', ' if among else ''}{_contents(among)})"
    if isinstance(answer, Prose):
        yield f"#lines({num_lines(answer)})"
    elif not isinstance(answer, Options | Gaps):
        width = "7cm" if isinstance(answer, Phrase) else "4cm"
        yield f"#answer({width}, {quoted(answer.unit if isinstance(answer, Amount) else '')})"
    yield "]"


def _asked(variant: Variant) -> Iterator[str]:
    yield bank_text.typst(variant.text, lambda gap: f"#blank({gap})")
    if variant.picture:
        yield f"\n#picture({quoted(_file_name(variant.picture))}, {quoted(variant.picture.alt)})"


def _explained(one: Explained) -> Iterator[str]:
    question = one.variant.question
    others = "; others have different numbers" if one.has_other_numbers else ""
    facts = (
        f"Week {question.week}, difficulty {question.difficulty} of 3, on {one.num_forms} "
        f"form{'' if one.num_forms == 1 else 's'}; shown as question {one.number} of {one.student.id}{others}. "
        f"Source: {question.source}."
    )
    yield f"#explained({quoted(question.id)}, {quoted(facts)})["
    yield from _asked(one.variant)
    if one.in_order:
        yield f'\n#offered("none", {_contents(lettered(one.variant.answer))})'
    yield from map(_remark, one.remarks)
    if one.rubric:
        given = ", ".join(
            f"({quoted(format_points(line.points))}, [{bank_text.typst(line.text)}])" for line in one.rubric
        )
        yield f"#rubric({quoted(format_points(question.points))}, {given})"
    yield "]"


def _remark(remark: Remark) -> str:
    mixed_up = f' #text(weight: "regular")[({escaped(remark.misconception)})]' if remark.misconception else ""
    is_right = "true" if remark.is_right else "false"
    return f"#remark({is_right}, [{bank_text.typst(remark.answer)}{mixed_up}], [{bank_text.typst(remark.feedback)}])"


def _contents(offered: list[tuple[str, str]]) -> str:
    return ", ".join(f"[{bank_text.typst(text)}]" for _, text in offered)


def _file_name(picture: TimelinePicture) -> str:
    return hashlib.sha256(repr(picture).encode()).hexdigest()[:20] + ".png"


@lru_cache
def _compiler() -> typst.Compiler:
    return typst.Compiler()


def without_a_font(text: str) -> str | None:
    """The first piece of a text that no font of this machine has; None if all characters have a font."""
    try:
        _compiler().compile(f"#set document(title: [a])\n{escaped(text)}".encode(), format="pdf", **_ACCESSIBLE)
    except typst.TypstError as error:
        if found := _NO_FONT.search(error.message):
            return found[1]
        raise
    return None


def _compiled(lines: Sequence[str], variants: Sequence[Variant]) -> bytes:
    source = "\n".join([_STYLE.read_text(encoding="utf-8"), *lines]).encode()
    with tempfile.TemporaryDirectory() as folder:
        for picture in {variant.picture for variant in variants if variant.picture}:
            Path(folder, _file_name(picture)).write_bytes(png(picture))
        compiled = partial(_compiler().compile, source, root=folder, format="pdf", timestamp=0)
        try:
            made = compiled(**_ACCESSIBLE)
        except typst.TypstError as error:
            if not _NO_FONT.search(error.message):
                raise
            made = compiled()  # a box stands for a missing character, which PDF/UA does not allow
    assert isinstance(made, bytes)  # not a list: it is one document
    _forget()
    return made


def _forget() -> None:
    """Free Typst's cache of a document, which is useless for the next one: 60 MB after ten forms."""
    for _ in range(_REMEMBERED + 1):
        _compiler().compile(b"", format="pdf")


FORMAT = on("a4")
