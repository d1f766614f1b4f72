"""A lesson asks for a prediction, waits for it, and goes on; what fails is a box in the colours of the theme."""

import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from autograder.authoring.notebooks import METADATA

pytestmark = pytest.mark.browser
CELLS = [
    'from worldsize import check, ledger\npredictions = ledger.Predictions("week99")',
    'predictions.ask("memory", None, "GB", section=5, choices=(1, 10, 100))',
    'predictions.reveal("memory", 54.5)',
    'with check.turn("mean"):\n    check.expect_close(2.0, 3.0, "the mean of <all> ranks", "divide by their number")',
    'print("the end")',
]


@pytest.fixture
def lesson(open_notebook, lab):
    path = lab.course / "weeks" / "asks.ipynb"
    cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(CELLS)]
    path.write_text(nbformat.writes(new_notebook(cells=cells, metadata=METADATA)))
    return open_notebook("weeks/asks.ipynb")


def test_lesson_waits_for_a_prediction_and_goes_on(lesson, lab, screenshots):
    lesson.choose("Run", "Run All Cells")
    box = lesson.page.locator(".jp-Stdin-input")
    expect(box).to_be_visible()
    expect(lesson.page.locator(".jp-Stdin-prompt")).to_contain_text("a) 1 GB,  b) 10 GB,  c) 100 GB.")
    expect(lesson.code_cells.last.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\*\]"))  # it waits
    lesson.page.screenshot(path=screenshots / "prediction.png")
    box.fill("many")
    box.press("Enter")
    expect(lesson.code_cells.nth(1)).to_contain_text("'many' is not a number")
    again = box.last  # JupyterLab takes the first one away a little later
    lesson.page.screenshot(path=screenshots / "prediction_again.png")
    again.fill("b")
    again.press("Enter")
    lesson.wait_for(lesson.code_cells.last)
    said = "memory: you predicted 10 GB; it is 54.5 GB, 5.5 times as much. Section 5 derives it."
    expect(lesson.code_cells.nth(2).locator(".jp-OutputArea")).to_have_text(said)
    kept = json.loads((lab.course / "weeks" / "ledger.json").read_text())["week99"]["memory"]
    assert kept == {"prediction": 10, "result": 54.5, "unit": "GB", "section": 5}

    failed = lesson.code_cells.nth(3).get_by_role("status")
    expect(failed).to_contain_text("Not yet: mean")
    expect(failed).to_contain_text("the mean of <all> ranks to be 3")
    for theme in ("Dark", "Light"):
        lesson.choose("Settings", "Theme", f"JupyterLab {theme}")
        expect(lesson.page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        failed.hover()
        lesson.page.screenshot(path=screenshots / f"not_yet_{theme.lower()}.png")
