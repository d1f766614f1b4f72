"""Week 1 as a student goes through it: predict, run, look, answer, go on to the lab."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from worldsize import quiz

WEEK = "weeks/week01_why_one_gpu_is_not_enough.ipynb"
pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_week_1_runs_shows_and_asks(open_notebook, lab, screenshots):
    """All in one test, because the week takes most of a minute to run."""
    week = open_notebook(WEEK)
    for name, number in {"years": "12", "memory_gb": "60", "hours": "24", "speedup": "2"}.items():
        predict(week, f"predicted_{name}", number)  # without a number it would ask, as in test_asking.py
    week.run_all(timeout_s=240)
    saved = week.save()
    assert errors_in(saved) == []

    figures_are_seen_and_described(week, saved)
    ledger = week.code_cells.filter(has_text="predictions.table()")
    expect(ledger.get_by_role("row", name="GPT-3")).to_contain_text(re.compile("12.0 years.*32.0 years"))

    questions = quiz.ask("week01", folder=lab.course / "quizzes").variants
    assert revealed_too_early(questions, week.page.content() + saved) == []
    an_answer_is_explained(week, questions[0], right=False)
    week.page.screenshot(path=screenshots / "quiz_wrong.png")
    an_answer_is_explained(week, questions[0], right=True)
    look_at_both_themes(week, screenshots)

    week.page.get_by_role("link", name="lab 1, average the gradients").click()
    expect(week.page.get_by_role("heading", name="Lab 1. Average the gradients")).to_be_visible()
    assert lab.errors() == []


def predict(week, name: str, number: str) -> None:
    week.code_cells.first.locator(".cm-line", has_text=name).get_by_text("None").dblclick()
    week.page.keyboard.type(number)


def errors_in(saved: str) -> list[dict]:
    outputs = [output for cell in json.loads(saved)["cells"] for output in cell.get("outputs", [])]
    return [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


def figures_are_seen_and_described(week, saved: str) -> None:
    figures = week.page.locator(".jp-OutputArea-output img:visible")  # of an explorer the live one, not its still
    expect(figures).to_have_count(saved.count('"image/png":'))
    assert figures.count() > 5
    right_edge = edge(week.page.locator(".jp-NotebookPanel-notebook"))
    for figure in figures.all():
        figure.hover()  # scrolls to it, and waits until it stands still and nothing covers it
        assert len(figure.get_attribute("alt")) > 60
        assert figure.evaluate("image => image.naturalWidth") > 400
        assert edge(figure) <= right_edge


def edge(locator) -> float:
    """The right edge, in pixels."""
    box = locator.bounding_box()
    return box["x"] + box["width"]


def revealed_too_early(questions, text: str) -> list[str]:
    """The explanations that stand in this text."""
    starts = [explanation[:30] for question in questions for explanation in explanations(question)]
    return [start for start in starts if start in text]


def explanations(question) -> list[str]:
    """All that a question explains after an attempt."""
    parts = question.answer.gaps.values() if hasattr(question.answer, "gaps") else [question.answer]
    feedback = [
        one.feedback for part in parts for one in (*getattr(part, "options", ()), *getattr(part, "mistakes", ()))
    ]
    return [*feedback, question.feedback] if question.feedback else feedback


def an_answer_is_explained(week, question, right: bool) -> None:
    choice = next(option for option in question.answer.options if option.correct == right)
    form = week.code_cells.last.locator(".jp-OutputArea")
    form.get_by_label(choice.text).check()
    form.get_by_role("button", name="Check").click()
    explanation = form.get_by_role("status")
    expect(explanation).to_contain_text("Right." if right else "Not yet.")
    expect(explanation).to_contain_text(choice.feedback[:30])
    assert revealed_too_early([question], week.page.content()) == [choice.feedback[:30]]
    explanation.hover()


def look_at_both_themes(week, screenshots: Path) -> None:
    figures = week.page.locator(".jp-OutputArea-output img:visible")
    for theme in ("Dark", "Light"):
        week.choose("Settings", "Theme", f"JupyterLab {theme}")
        expect(week.page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        for name in ("Timeline", "Line chart", "Stacked bars"):
            figures.and_(week.page.get_by_alt_text(re.compile(name))).last.hover()
            week.page.screenshot(path=screenshots / f"{name.split()[-1].lower()}_{theme.lower()}.png")
        week.code_cells.last.get_by_role("status").hover()
        week.page.screenshot(path=screenshots / f"quiz_{theme.lower()}.png")
