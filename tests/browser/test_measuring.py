"""Project 1 as a student works on it: a program beside a notebook that starts and measures it."""

import pytest
from playwright.sync_api import expect

from autograder.authoring.programs import solved

REPORT, PROGRAM = "labs/project1/report.ipynb", "train.py"
FIRST_CELLS = 4  # up to the first check: parameters, setup, trying_out, check_my_samples
pytestmark = pytest.mark.browser


def test_the_first_check_says_what_is_missing_and_then_that_it_holds(open_notebook, lab, root, screenshots):
    notebook = open_notebook(REPORT)
    expect(notebook.page.get_by_role("heading", name="Project 1. A training program, measured")).to_be_visible()
    check = run_to_the_first_check(notebook, cells_run=0)
    expect(check).to_contain_text("NotImplementedError: Replace this line with your own code")
    expect(check.get_by_role("link", name="train.py")).to_be_visible()  # to the line that is to be replaced
    expect(check).not_to_contain_text("site-packages")
    check.scroll_into_view_if_needed()
    notebook.page.screenshot(path=screenshots / "project_untouched.png")

    path = lab.course / "labs" / "project1" / PROGRAM
    path.write_text(solved(root / "solutions" / "project1" / PROGRAM))
    check = run_to_the_first_check(notebook, cells_run=FIRST_CELLS)
    expect(check).to_contain_text("46 samples on 3 ranks: [(0, 15), (15, 30), (30, 46)]")
    check.scroll_into_view_if_needed()
    notebook.page.screenshot(path=screenshots / "project_solved.png")
    assert lab.errors() == []


def run_to_the_first_check(notebook, cells_run):
    """The output of the first check, after all cells above it have run, and it."""
    for place in range(FIRST_CELLS):
        cell = notebook.code_cells.nth(place)
        cell.click()
        notebook.choose("Run", "Run Selected Cell and Do not Advance")
        expect(cell.locator(".jp-InputPrompt")).to_have_text(f"[{cells_run + place + 1}]:")
    return cell.locator(".jp-OutputArea")
