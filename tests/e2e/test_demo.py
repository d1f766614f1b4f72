"""The demo from end to end on a small week and a small lab."""

import re
import shutil
from pathlib import Path

import lxml.html
import pytest
from repository import ROOT
from rich.console import Console

from autograder.authoring.notebooks import build
from autograder.authoring.scripts import parse
from autograder.demo import StepFailed, demo
from autograder.demo.first_look import SCRIPT
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
from autograder.judging.checks.check import points
from worldsize.check import expect_close


def on_rank(student, number):
    return student.double(number)


@points(2, cell="check_double")
def check_doubles(student, rng):
    """The number is doubled."""
    expect_close(student.run(on_rank, 21.0, world_size=1)[0], 42.0, "double")
'''
FIRST_LOOK = """
# %% [markdown]
# ## One thing to see
#
# Two and two, on **paper**.

# %% four
from worldsize import draw

draw.table([{"sum": 2 + 2}], title="Added on this machine")
"""
CLASS = """
[[student]]
id = "honest"
about = "right"
answer = "solution"

[[student]]
id = "wrong"
about = "triples"
answer = "wrong/triple"
shown_check = "check_doubles"

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
        "solutions/first_look.py": FIRST_LOOK,
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
    said = console.export_text()
    assert "2 of 3" in said
    assert re.findall(r"^(\d) of 7: ", said, re.MULTILINE) == list("1234567") and "papermill" in said
    links = re.findall(r'href="([^"]+)"', html)
    assert len(links) == 4
    pages = [page, *(page.parent / link for link in links)]
    for linked in pages:
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"https?:", linked.read_text()), linked
    week = (page.parent / "week/week99.html").read_text()
    assert "<math" in week and "data:image/png" in week
    seen = lxml.html.fromstring(html).text_content()
    for text in ("One thing to see", "Two and two, on paper.", "Added on this machine", "A cheat that failed"):
        assert text in seen
    cheat = seen.partition("A cheat that failed")[2].partition("The class that was graded")[0]
    for text in ("Triples.", "The number is doubled.", "63", "0 of 2 points"):
        assert text in cheat


def test_what_is_seen_first_takes_a_minute_to_read_and_is_what_a_newcomer_asks() -> None:
    cells = [cell.source for cell in parse(ROOT / SCRIPT).cells if cell.kind == "markdown"]
    template = (ROOT / "autograder/templates/demo.html.j2").read_text()
    assert "A cheat that failed" in template
    words = " ".join([*cells, re.sub(r"<[^>]+>|{[^}]+}", " ", template.partition("<body>")[2])]).split()
    assert len(words) < 300  # at 300 a minute; tables and the verdict come on top
    ring, paper = cells
    assert "1.5 MB" in ring and "real processes" in ring  # how much does each send, and what is real?
    assert "without a GPU" in paper and "11%" in paper and "52%" in paper  # where did it run, and what came of it?


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
