"""An instructor's way through the formgrader in JupyterLab: grade, give points by hand, make the page of feedback."""

import shutil
from copy import deepcopy

import nbformat
import pytest
from commands import run
from graded_course import hand_in
from nbgrader.api import Gradebook
from playwright.sync_api import expect
from tiny_lab import LAB, MEAN, NAME, TOTAL, answered, make_course, needs_jail, release

pytestmark = [pytest.mark.browser, needs_jail]
STUDENT = "ada"
QUESTION = """
# %% [markdown] why points=2 tags=["solution"]
# Why is a mean not a sum?
"""
# outside of a sandbox it would leave a mark and say that all is well
LEAVES_A_MARK = """\
try:
    with open({mark!r}, "w") as file:
        file.write("I ran outside of a sandbox")
except OSError:
    pass
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory, root):
    """A course below a folder of its own; ada answers one of two functions well, and would leave a mark beside it."""
    course = make_course(tmp_path_factory.mktemp("courses") / "sums", LAB + QUESTION)
    course.chmod(0o700)
    shutil.copy(root / "jupyter_lab_config.py", course)
    shutil.copytree(root / "weeks", course / "weeks")
    code = LEAVES_A_MARK.format(mark=str(course / "MARK")) + TOTAL
    cells = {"total": code, "mean": MEAN.replace("/", "*"), "why": "Because <script>alert(1)</script> of **n**."}
    hand_in(course, STUDENT, nbformat.writes(answered(deepcopy(release(course)), cells)))
    assert run(course, "nbgrader", "generate_assignment", NAME, "--force").returncode == 0
    return course


@pytest.fixture
def formgrader(course, start_lab, browser, tmp_path):
    """The formgrader, opened from the menu of a JupyterLab that runs at the course's root."""
    with start_lab(course, tmp_path) as lab:
        page = browser.new_context(viewport={"width": 1366, "height": 768}).new_page()
        page.goto(f"{lab.url}lab?token={lab.token}")
        page.get_by_role("menuitem", name="Nbgrader", exact=True).click()
        page.locator(".lm-Menu-itemLabel").get_by_text("Formgrader", exact=True).click()
        yield page, page.frame_locator("iframe[src*='formgrader']")


def test_an_instructor_grades_reads_and_gives_feedback_in_the_formgrader(course, formgrader, screenshots):
    page, frame = formgrader
    frame.locator("td.num-submissions a").click()
    press(frame, "autograde")
    page.screenshot(path=screenshots / "formgrader_graded.png")
    assert points(course) == 3
    assert not (course / "MARK").exists()

    frame.get_by_role("link", name="Manual Grading").click()
    for _ in range(2):  # the assignment, then its notebook
        frame.locator("td.name").get_by_role("link", name=NAME, exact=True).click()
    frame.get_by_role("link", name="Submission #1").click()
    answer = frame.locator(".nbgrader_cell", has_text="Because")
    expect(answer).to_contain_text("Because <script>alert(1)</script> of n.")
    expect(frame.locator("body")).to_contain_text("Every rank holds the mean over all ranks.")
    with page.expect_response(lambda answered: "/api/grade/" in answered.url and answered.request.method == "PUT"):
        answer.locator("input.score").fill("1.5")
        answer.locator("input.score").press("Tab")
    answer.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "formgrader_by_hand.png")
    assert points(course) == 4.5

    frame.get_by_role("link", name="Manual Grading").click()
    frame.get_by_role("link", name="Manage Assignments").click()
    frame.locator("td.num-submissions a").click()
    press(frame, "generate-feedback")
    written = (course / "feedback" / STUDENT / NAME / f"{NAME}.html").read_text()
    for text in ("<strong>4.5</strong> of 7 points", "1.5 by your instructor", "Every rank holds the mean"):
        assert text in written
    assert "<script" not in written


def press(frame, what):
    """Presses a button of the student's row, and reads that all went well."""
    frame.locator("tr", has_text=STUDENT).locator(f"td.{what} a, td.{what} span").last.click()
    expect(frame.locator(".modal-title")).to_have_text("Success")
    frame.get_by_role("button", name="Close").last.click()
    expect(frame.locator(".modal-title")).to_have_count(0)


def points(course):
    with Gradebook(f"sqlite:///{course}/gradebook.db", "worldsize") as book:
        return book.find_submission(NAME, STUDENT).score
