"""A lesson as a page: whole without a network, every formula drawn by the browser itself."""

import re
import tomllib
from importlib import import_module

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from repository import ROOT

from autograder.authoring.notebooks import notebook
from autograder.authoring.scripts import read_week
from worldsize import quiz
from worldsize.pages import LessonExporter

FROM_ELSEWHERE = re.compile(r"""<(?:script|style|link|img|iframe)\b[^>]*https?://|url\(["']?https?:|@import|import\(""")
AT_NIGHT = pytest.mark.nightly("five seconds each, and a browser reads every week's page by day")
WEEKS = [
    pytest.param(path, marks=AT_NIGHT if place % 3 else ())
    for place, path in enumerate(sorted((ROOT / "weeks").glob("*.py")))
]


def page(*cells):
    return LessonExporter().from_notebook_node(new_notebook(cells=[*cells]))[0]


def shown(bundle):
    return new_code_cell("show()", outputs=[new_output("display_data", data=bundle)])


@pytest.mark.parametrize("week", WEEKS, ids=lambda path: path.stem[:6])
def test_a_week_loads_nothing_and_all_its_formulas_are_drawn(week):
    node = notebook(read_week(week), graded=False)
    asked = quiz.ask(week.stem[:6], 30, folder=ROOT / "quizzes")._repr_mimebundle_()
    html = LessonExporter().from_notebook_node(new_notebook(cells=[*node.cells, shown(asked)]))[0]
    assert FROM_ELSEWHERE.findall(html) == []
    text = re.sub(r"<(pre|code)\b.*?</\1>|<(script|style)\b.*?</\2>", "", html, flags=re.DOTALL)
    assert "$" not in text and r"\(" not in text
    sources = [cell.source for cell in node.cells if cell.cell_type == "markdown"]
    assert html.count("<math") >= sum(source.count("$$") // 2 for source in sources)


def test_formulas_of_text_and_questions_become_mathml_and_money_stays():
    words = page(new_markdown_cell("Half: $\\frac{1}{2}$."), shown({"text/html": "<p>$2 an hour, $3 a day</p>"}))
    assert words.count("<mfrac>") == 1 and "$2 an hour, $3 a day" in words
    asked = {"text/html": '<div class="worldsize-questions"><p>$a &lt; b$, <code>$HOME$</code></p></div>'}
    html = page(shown(asked))
    assert html.count("<math") == 1 and "<mo>&lt;</mo>" in html and "<code>$HOME$</code>" in html


def test_nbconvert_knows_the_page_by_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["nbconvert.exporters"]["worldsize"].partition(":")
    assert getattr(import_module(module), name) is LessonExporter
