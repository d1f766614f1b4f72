"""axe-core on every kind of page that is generated: nothing that it calls serious or critical, in light and dark."""

import base64
import shutil

import pytest
from axe import serious
from feedback_pages import answer, check, graded, html
from made_results import made_result
from nbformat.v4 import new_markdown_cell
from planted_copies import copied, independent, pool
from quiz_class import a_class, right
from repository import ROOT
from typer.testing import CliRunner

from autograder.bench import leaderboard
from autograder.cli import app
from autograder.demo import run
from autograder.demo.first_look import Cheat, Look
from autograder.grading.reports import progress, status
from autograder.grading.reports.status import AssignmentStatus, ClassStatus
from autograder.grading.standing import Points, Standing, State
from autograder.judging.report import Drawing, Outcome
from autograder.quiz import preview
from autograder.quiz.formats import html as forms
from autograder.similarity.page import write_page
from autograder.similarity.pairs import ComparedWork as Code
from autograder.similarity.pairs import compare
from autograder.submissions.regrade_requests import RegradeRequest
from worldsize.draw.contrast import bars
from worldsize.pages import LessonExporter

pytestmark = pytest.mark.browser


def a_standing(student="ada", state=State.DONE, **more):
    cells = [Points(cell="check_total", score=None if state is State.BY_HAND else 2, max_score=3)]
    known = {"due": "2026-11-20 12:00:00", "raw_score": 2.0, "cells": cells, "section": "Monday", **more}
    return Standing("lab01", student, "Lovelace", "Ada", "", "", state, 3.0, **known)


def the_status(folder):
    standings = [a_standing(f"s{n}", state, num_regrades=n % 2) for n, state in enumerate(State)]
    standings.append(a_standing("late", penalty=0.5))
    found = ClassStatus([AssignmentStatus("lab01", "2026-11-20 12:00", standings)], ["Not on the roster: zed."])
    status.write_page(found, folder / "a.html")


def the_checklists(folder):
    items = [progress.ChecklistItem("lab01", a_standing(state=state)) for state in State] + [
        progress.ChecklistItem("lab02", None)
    ]
    page = progress.page([progress.Checklist("ada", "Lovelace, Ada", items), progress.Checklist("ben", "ben", items)])
    (folder / "a.html").write_text(page)


def the_similar_works(folder):
    answers = pool(ROOT / "solutions/lab03")
    works = [Code(f"honest{n}", independent(answers, n)) for n in range(6)]
    found = compare([*works, Code("copy", copied(works[0].parts, 0))], [], 0.5)
    assert found.pairs
    write_page("lab03", found, 0.5, folder / "a.html")


def the_feedback(folder):
    drawn = bars({"rank 0": 0.25}, {"rank 0": 1.0}, "What the result is made of", "weight in the sum")
    picture = Drawing(png=base64.b64encode(drawn.png()).decode(), alt=drawn.alt)
    checks = [check(f"This is {one.value}.", one) for one in Outcome if one is not Outcome.FAULT]
    checks[1] = check("The gradient is weighted.", Outcome.WRONG, "Expected: 1. Got: 2.", picture=picture)
    asked = [RegradeRequest("ada", "check_total", "Why?", "Because."), RegradeRequest("ada", "", "All of it.")]
    cells = [
        new_markdown_cell("# My notes\n\n| a | b |\n|---|---|\n| 1 | $x^2$ |\n\n## Again"),
        answer("import torch\n\nclass A:  # a comment\n    text = f'{1:g}'", "Nearly: *weigh* them."),
        graded("check_total", score=2.0),
        graded("why", solution=True, is_waiting=True),
    ]
    (folder / "a.html").write_text(html(cells, *checks, requests=asked, team=("ada", "ben")))
    (folder / "b.html").write_text(html(cells, record={"malformed": "It is no notebook."}, requests=asked))


def the_demo(folder):
    rows = [run.ScoreLine("ada", "all right", 22, 25, "graded: 3 checks passed", "a.html")]
    picture = bars({"a": 1}, {"a": 2}, "t", "u")._repr_mimebundle_()["text/html"]
    seen = [Look("<h3>A ring</h3>\n<p>It runs.</p>", picture, "show(ring)")]
    cheats = [Cheat("It claims full marks.", "the mean of all ranks", "No message carried it.", "0 of 22 points")]
    (folder / "a.html").write_text(run._render("week01", "lab01", seen, cheats, rows))


def the_lesson(folder):
    page, _ = LessonExporter().from_filename(str(ROOT / "weeks/week01_why_one_gpu_is_not_enough.ipynb"))
    (folder / "a.html").write_text(page)


def the_leaderboard(folder):
    one = made_result()
    page, num = leaderboard.page({"ada": one, "ben": one}, has_names=True)
    assert num == 2
    (folder / "a.html").write_text(page)


def the_quiz(folder):
    """A form, the key, two marked pages, the statistics, and the bank."""
    made, key = a_class(folder)
    (folder / "form.html").write_bytes(forms.FORMAT.render(made[0]))
    assert forms.FORMAT.key
    (folder / "key.html").write_bytes(forms.FORMAT.key(made))
    rows = ["student,question,response"]
    for number, variant in enumerate(made[0].variants, start=1):
        rows.append(f'ada,{number},"{right(variant.answer)}"')
    rows.append("bob,1,A")
    (folder / "responses.csv").write_text("\n".join(rows) + "\n")
    words = ["quiz", "mark", str(key), str(folder / "responses.csv"), "--out", str(folder / "marks")]
    done = CliRunner().invoke(app, [*words, "--bank", str(folder / "quizzes"), "--unreadable-as-zero"])
    assert done.exit_code == 0, done.output
    for name, page in (("items", "items.html"), ("ada", "feedback/ada.html"), ("bob", "feedback/bob.html")):
        shutil.copy(folder / "marks" / page, folder / f"{name}.html")
    preview.write(folder / "quizzes", folder / "preview.html", 2)


PAGES = {
    "status": the_status,
    "progress": the_checklists,
    "similar": the_similar_works,
    "feedback": the_feedback,
    "demo": the_demo,
    "lesson": the_lesson,
    "leaderboard": the_leaderboard,
    "quiz": the_quiz,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of each kind of page, made when it is asked for."""
    made = {}

    def folder(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            PAGES[kind](made[kind])
        return made[kind]

    return folder


@pytest.mark.parametrize(
    "theme", ["light", pytest.param("dark", marks=pytest.mark.nightly("a minute and a half; the colours are two sets"))]
)
@pytest.mark.parametrize("kind", PAGES)
def test_axe_finds_nothing_serious(browser, folders, kind, theme):
    files = sorted(folders(kind).glob("*.html"))
    assert files
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=theme, offline=True)
    found = []
    for file in files:
        page = context.new_page()
        page.goto(file.as_uri())
        found += [f"{file.name}: {one}" for one in serious(page)]
    context.close()
    assert found == []


def test_axe_finds_what_is_wrong(browser):
    page = browser.new_page()
    page.set_content('<img src="x.png"><p style="color: #ccc">faint</p><button></button>')
    found = "\n".join(serious(page))
    page.close()
    assert "image-alt" in found and "color-contrast" in found and "button-name" in found
