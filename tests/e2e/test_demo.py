"""The demo from end to end on a small week and a small lab."""

import re
import shutil
from pathlib import Path

import pytest
from repository import ROOT
from rich.console import Console

from autograder.authoring.notebooks import build
from autograder.demo import StepFailed, demo
from worldsize.pages import FormulasToMathML, OfflineHTMLExporter

WEEK = """
# %% [markdown]
# # A week
# Inline $x^2$, code `$x$`, and
# $$y = \\frac{1}{2}$$

# %% run_ranks
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import draw


def total():
    with ws.span("sum", "communication"):
        dist.all_reduce(torch.ones(1))
    return dist.get_world_size()


draw.timeline(ws.run(total, world_size=2).timeline)
"""
LAB = """
# %% double tags=["solution"]
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% check_double points=2
assert double(2) == 4

# %% why [markdown] points=1 tags=["solution"]
# Because two are twice as many as one.
"""
CHECKS = '''
from autograder.judging.checks import points
from worldsize.check import expect_close


def on_rank(student, number):
    return student.double(number)


@points(2, cell="check_double")
def check_doubles(student, rng):
    """The number is doubled."""
    expect_close(student.run(on_rank, 21.0, world_size=1)[0], 42.0, "double")
'''
CLASS = """
[[student]]
id = "honest"
about = "right"
answer = "solution"

[[student]]
id = "wrong"
about = "triples"
answer = "wrong/triple"

[[student]]
id = "broken"
about = "half a file"
answer = "solution"
keep_fraction = 0.5
"""
WRONG = """# score: 0
# Triples.

# %% double
def double(x):
    return 3 * x
"""


@pytest.fixture
def course(tmp_path: Path) -> Path:
    files = {
        "weeks/week99_small.py": WEEK,
        "solutions/lab99/lab99.py": LAB,
        "solutions/lab99/checks.py": CHECKS,
        "solutions/lab99/sample_class.toml": CLASS,
        "solutions/lab99/wrong/triple.py": WRONG,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    build(tmp_path)
    return tmp_path


def test_page_shows_the_class_and_the_week(course: Path) -> None:
    console = Console(record=True, width=200)
    page = demo(course, "week99", "lab99", console)
    html = page.read_text()
    rows = [re.sub(r"<[^>]+>|\s+", " ", row) for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)]
    assert any("honest" in row and "2 of 3" in row and "needs manual grading" in row for row in rows)
    assert any("wrong" in row and "0 of 3" in row for row in rows)
    assert any("broken" in row and "0 of 3" in row and "malformed submission" in row for row in rows)
    assert "2 of 3" in console.export_text()
    assert html.count("data:image/png") == 1
    links = re.findall(r'href="([^"]+)"', html)
    assert len(links) == 4
    pages = [page, *(page.parent / link for link in links)]
    for linked in pages:
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"https?:", linked.read_text()), linked
    assert "&#x" in pages[-1].read_text() or "<math" in pages[-1].read_text()


def test_failing_week_says_which_cell(course: Path) -> None:
    (course / "weeks/week99_small.py").write_text("# %% broken\nraise ValueError('no such number')\n")
    build(course)
    with pytest.raises(StepFailed, match="no such number"):
        demo(course, "week99", "lab99", Console(quiet=True))


def test_formulas_outside_code_become_mathml() -> None:
    import nbformat

    cell = nbformat.v4.new_markdown_cell("`$a$` and $b^2$ cost $$\\frac{1}{2}$$\n```\n$c$\n```")
    exporter = OfflineHTMLExporter()
    exporter.register_preprocessor(FormulasToMathML)
    html, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    body = html[html.index("<body") :]
    assert body.count("<math") == 2
    assert "$a$" in body and "$c$" in body and "$b" not in body
