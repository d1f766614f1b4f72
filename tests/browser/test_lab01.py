"""Lab 1 as a student checks it: nbgrader's Validate button."""

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from autograder.authoring.known_answers import compose, solution_cells

LAB = "labs/lab01/lab01.ipynb"
pytestmark = pytest.mark.browser


def test_validate_says_what_fails_in_the_untouched_lab(open_notebook, lab, screenshots):
    notebook = nbformat.read(lab.course / LAB, as_version=4)
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    checks = [cell for cell in graded if cell.cell_type == "code"]
    message = validated(open_notebook(LAB))
    expect(message.get_by_text("The following cell failed:")).to_have_count(len(graded))
    for check in checks:
        expect(message).to_contain_text(check.id)
        expect(message).not_to_contain_text(check.source.splitlines()[0])
    reports = message.locator("pre", has_text="RankFailed: Rank")
    expect(reports).to_have_count(len(checks))
    for report in reports.all_inner_texts():
        assert "NotImplementedError: Replace this line with your own code" in report
        assert "Traceback" not in report and "site-packages" not in report
    reports.first.hover()
    message.page.screenshot(path=screenshots / "validate_untouched.png")
    assert lab.errors() == []


def test_validate_praises_the_solution(open_notebook, lab, root, screenshots):
    notebook = nbformat.read(lab.course / LAB, as_version=4)
    solved = compose(notebook, solution_cells(root / "solutions" / "lab01" / "lab01.py"))
    nbformat.write(solved, lab.course / "labs" / "lab01" / "solved.ipynb")
    message = validated(open_notebook("labs/lab01/solved.ipynb"))
    expect(message).to_have_text("Success! Your notebook passes all the tests.")
    message.page.screenshot(path=screenshots / "validate_solved.png")
    assert lab.errors() == []


def validated(notebook) -> Locator:
    """What the dialog of the Validate button says."""
    notebook.page.get_by_role("button", name="Validate").click()
    message = notebook.page.locator("#validation-message")
    expect(message).to_be_visible(timeout=150_000)
    return message
