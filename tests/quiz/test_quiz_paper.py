"""Forms that people read: every text is there as it was written, nothing is loaded, and nothing reveals the answers."""

import ast
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import nbformat
import pytest
from needs import give_up
from quiz_samples import CLOZE, FIGURE, NUMERIC, ORDERING, SINGLE, WORDS, question

from autograder.markdown import bank_text
from autograder.markdown.formulas import typst_of
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.formats import FORMATS, pdf
from autograder.quiz.forms import deal
from autograder.quiz.key import letter, printed
from autograder.tables.roster import Student
from worldsize.quiz import mark

MULTIPLE = SINGLE.replace('"single"', '"multiple"').replace("t-bound", "t-several").replace("all-reduce", "reduce")
NASTY = "a & b < c > d \"e\" 'f' ~={}#: ]]> \\textbackslash \\alpha @x /* y */ // z $5 and -- = + 1. [[ ]] `x_y`"
QUESTIONS = [question(text) for text in (SINGLE, MULTIPLE, NUMERIC, ORDERING + FIGURE, WORDS, CLOZE)]


def form_of(*questions, name="Ada Lovelace"):
    (form,) = deal(Blueprint(title="A <quiz>", count=len(questions)), questions, [Student("ada", name)], b"key")
    return form


@pytest.fixture(scope="module")
def form():
    """One of every kind."""
    return form_of(*QUESTIONS)


class Page(HTMLParser):
    """The tags with their attributes, and the text."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.words, self.open = [], "", []
        self.feed(content.decode())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.words += data if not self.open or self.open[-1] != "style" else ""

    def having(self, tag, **attributes):
        return [found for name, found in self.tags if name == tag and attributes.items() <= found.items()]


def words_of_pdf(content, tmp_path):
    if not shutil.which("pdftotext"):
        give_up("pdf", "pdftotext is not installed (Debian and Ubuntu: poppler-utils)")
    (tmp_path / "form.pdf").write_bytes(content)
    command = ["pdftotext", "-layout", tmp_path / "form.pdf", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["md", "html", "pdf", "ipynb"])
def test_a_form_is_the_same_bytes_every_time(form, name):
    assert FORMATS[name].render(form) == FORMATS[name].render(form)


@pytest.mark.parametrize("name", ["md", "html", "ipynb"])
def test_a_form_tells_no_answer(form, name):
    content = FORMATS[name].render(form).decode()
    for words in (
        "half of the way",
        "of it.",
        "A byte has 8 bits",
        "Both make",
        "Twice N",
        "all-gather",
        "one chunk",
    ):
        assert words not in content, words
    amount = next(one.answer for one in form.variants if one.question.kind == "numeric")
    assert amount.text not in content


def test_a_page_loads_nothing_and_every_answer_has_a_field_with_a_name(form):
    content = FORMATS["html"].render(form)
    page = Page(content)
    assert not page.open and not re.search(rb"<script|<link|url\(|@import|\bon\w+=", content)
    addresses = [value for _, found in page.tags for key, value in found.items() if key in ("src", "href", "action")]
    assert addresses and all(address.startswith("data:image/png;base64,") for address in addresses)
    assert page.having("img", alt="Stages one after the other")
    num_gaps = sum(len(found["aria-label"]) > 0 for found in page.having("input") if "aria-label" in found)
    assert num_gaps == 3
    assert len(page.having("input", type="radio")) == len(page.having("input", type="checkbox")) == 3
    labelled = {found["for"] for found in page.having("label") if "for" in found}
    assert labelled == {found["id"] for found in page.having("input") if "id" in found} and len(labelled) == 3
    assert "A <quiz>" in page.words and "Ada Lovelace (ada)" in page.words


def test_a_page_shows_formulas_without_a_script(form):
    page = Page(FORMATS["html"].render(form))
    assert page.having("mfrac") and "\\frac" not in page.words


@pytest.mark.parametrize("name", ["md", "html", "ipynb", "pdf"])
def test_options_and_items_stand_in_the_order_of_the_key(form, name, tmp_path):
    content = FORMATS[name].render(form)
    match name:
        case "ipynb":
            shown = "\n".join(cell.source for cell in nbformat.reads(content.decode(), as_version=4).cells)
        case "pdf":
            shown = words_of_pdf(content, tmp_path)
        case "html":
            shown = Page(content).words
        case _:
            shown = content.decode()
    for variant in form.variants:
        kind = variant.question.kind
        if kind in ("single", "multiple", "ordering"):
            answer = variant.answer
            offered = answer.shown if kind == "ordering" else [option.text for option in answer.options]
            marks = (rf"{letter(place)}\W+{re.escape(text)}" for place, text in enumerate(offered))
            assert re.search(r"\s.*?".join(marks), shown, re.DOTALL), variant.question.id


def test_nasty_texts_stand_on_paper_as_they_were_written(tmp_path):
    nasty = NASTY.replace("$5", "\\\\$5").replace('"', '\\"').replace("\\t", "\\\\t").replace("\\a", "\\\\a")
    text = WORDS.replace("A reduce-scatter and then?", nasty).replace("\\\\\\$", "\\\\$")
    form = form_of(question(text), name='Zoë <b>"$x$"</b> #strong')
    wanted = NASTY.replace("`", "")
    assert wanted in " ".join(Page(FORMATS["html"].render(form)).words.split())
    on_paper = " ".join(words_of_pdf(FORMATS["pdf"].render(form), tmp_path).split())
    assert wanted in on_paper
    assert 'Zoë <b>"$x$"</b> #strong (ada)' in on_paper


@pytest.mark.parametrize(
    "latex",
    [
        r"\frac{2(N-1)}{N} S",
        r"t(S) = \alpha + \frac{S}{\beta} \quad \text{in ms, for all } N",
        r"\sum_{i=1}^{n} x_i^2 \leq \sqrt[3]{3} \cdot 10^{-3}",
        r"\left( \frac{a}{b} \right)_{\mathrm{step}}, \; \Big( 34 + 5 \frac{a s}{h} \Big)",
        r"\log_2 \max(a, b) \approx 50\%; \hat{x}' \ge \overline{ab}",
        r"\begin{cases} a & n > 1 \\ b & \text{else; or, \#1} \end{cases}",
        r"\underbrace{a+b}_{c} \to \lceil x \rceil, {}^2 \# \_ \& / : ; ' \mathbf{x}",
    ],
)
def test_formulas_can_be_set(latex, tmp_path):
    text = WORDS.replace("A reduce-scatter and then?", "Then $" + latex.replace("\\", "\\\\") + "$?")
    form = form_of(question(text))
    assert FORMATS["pdf"].render(form).startswith(b"%PDF-1.7")
    assert "<math" in FORMATS["html"].render(form).decode()


def test_a_formula_keeps_letters_numbers_and_signs():
    assert typst_of(r"\frac{2(N-1)}{N} S") == r"frac(2 \( N − 1 \), N) S"
    assert typst_of(r"\sqrt[3]{3} \sqrt{2}") == "root(3, 3) sqrt(2)"
    assert typst_of(r"\log_2 N") == 'attach(op("log"), b: 2) N'
    assert typst_of(r"10\,\text{ms}") == '10 #h(0.167em)"ms"'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("![a](b.png)", "a question's text cannot have an? image; for a picture give it a figure"),
        (r"what is $x^2^3$?", "cannot be read: DoubleSuperscripts"),
        (r"what is $\frac{1}$?", "is incomplete"),
        (r"what is $\fraction{1}{2}$?", r"has '\\\\fraction', which is unknown"),
    ],
)
def test_what_cannot_be_shown_is_reported(text, reason):
    for convert in (bank_text.html, bank_text.typst):
        with pytest.raises(ValueError, match=reason):
            convert(text)


def test_a_gap_is_a_blank_wherever_it_stands():
    text = "`x = [[one]]` and $N = [[two]]$ and **[[three]]**"
    html = bank_text.html(text, lambda place: f"<{place}>")
    assert [html.count(f"<{place}>") for place in (1, 2, 3)] == [1, 1, 1] and "[[" not in html
    typst = bank_text.typst(text, lambda place: f"#blank({place})")
    assert re.findall(r"#blank\((\d)\)", typst) == ["1", "2", "3"]
    form = form_of(question(CLOZE.replace("takes [[steps]] steps", "takes $N = [[steps]]$ steps")))
    assert FORMATS["pdf"].render(form).startswith(b"%PDF")


def test_a_pdf_is_tagged_and_on_the_paper_that_was_asked_for(form):
    content = FORMATS["pdf"].render(form)
    assert b"/MarkInfo" in content and b"pdfuaid:part" in content and b"CreationDate" not in content
    sizes = [
        re.search(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pdf.on(paper).render(form)).groups()
        for paper in ("a4", "us-letter")
    ]
    assert [(round(float(x)), round(float(y))) for x, y in sizes] == [(595, 842), (612, 792)]


def test_what_no_font_has_is_reported_and_does_not_stop_a_pdf():
    unassigned = "\U0002fffd"
    assert pdf.without_a_font("Ünal Łukasz, Иван") is None
    assert pdf.without_a_font(f"a {unassigned}") == r"\u{2fffd}"
    assert FORMATS["pdf"].render(form_of(QUESTIONS[4], name=unassigned)).startswith(b"%PDF")


def test_keys_have_every_answer_and_explain_every_question_once(form, tmp_path):
    other = form_of(*QUESTIONS[:3], name="Bo")
    forms = [form, other]
    for name in ("html", "pdf"):
        render_key = FORMATS[name].key
        assert render_key
        content = render_key(forms)
        shown = Page(content).words if name == "html" else words_of_pdf(content, tmp_path)
        shown = " ".join(shown.split())
        for variant in form.variants:
            assert " ".join(printed(variant.answer).split()) in shown, variant.question.id
        assert shown.count("half of the way") == 2  # once in each of two questions
        assert shown.count("A byte has 8 bits.") == 1 and "bits for bytes" in shown and "one to all" in shown


def test_a_notebook_is_valid_and_its_examples_are_literals_of_the_right_kind(form):
    content = FORMATS["ipynb"].render(form).decode()
    notebook = nbformat.reads(content, as_version=4)
    nbformat.validate(notebook)
    cells = {cell.id: cell for cell in notebook.cells}
    for number, variant in enumerate(form.variants, start=1):
        source = cells[f"question_{number}"].source
        assert ast.parse(source).body[0].value.value is None and source.startswith(f"answer_{number} = None")
        example = ast.literal_eval(source.partition("such as ")[2])
        if variant.question.kind == "cloze":
            assert list(example) == [1, 2, 3]
        elif variant.question.kind == "numeric":
            assert 0 <= mark(variant, example).share <= 1
        else:
            assert isinstance(example, str)
    assert json.loads(content)["metadata"]["quiz"] == {"student": "ada"}
    assert sum("attachments" in cell for cell in notebook.cells) == 1


def test_markdown_has_its_pictures_in_itself(form):
    content = FORMATS["md"].render(form).decode()
    (used,) = re.findall(r"!\[Stages one after the other\]\[(figure-\d)\]", content)
    assert f"\n[{used}]: data:image/png;base64," in content
    assert content.startswith("# A \\<quiz\\>\n") and "takes \\_\\_\\_(1)\\_\\_\\_ steps" in content
