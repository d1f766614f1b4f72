"""Week 1 in plain Jupyter Notebook: `jupyter notebook` instead of JupyterLab."""

import json
import re
import shutil

import pytest
from conftest import COURSE, Notebook
from playwright.sync_api import expect
from repository import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.nightly("more than a minute of a lesson")]
WEEK = "weeks/week01_why_one_gpu_is_not_enough.ipynb"


def test_week_1_runs_and_its_widgets_answer(start_lab, browser, tmp_path, screenshots):
    course = tmp_path / "course"
    for name in COURSE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, course / name)
    predicted = re.sub(r"(predicted_\w+) = None", r"\1 = 12", (course / WEEK).read_text())  # without it, cells ask
    (course / WEEK).write_text(predicted)
    with start_lab(course, tmp_path / "home", "jupyter", "notebook", "--allow-root") as notebooks:
        page = browser.new_context(viewport={"width": 1366, "height": 768}).new_page()
        page.goto(f"{notebooks.url}notebooks/{WEEK}?token={notebooks.token}")
        week = Notebook(page, course / WEEK)
        expect(page.get_by_role("heading", name="Week 1. Why one GPU is not enough")).to_be_visible()
        week.run_all(timeout_s=240)
        page.screenshot(path=screenshots / "plain_notebook.png")
        explorer = week.add_and_start("from worldsize.explore import explore\n\nexplore(lambda x=2: x * 21, x=(1, 5))")
        status = explorer.get_by_role("status")
        expect(status).to_contain_text("42")
        track = explorer.locator(".noUi-base").bounding_box()  # arrow keys are the notebook's own there
        page.mouse.click(track["x"] + 0.75 * track["width"], track["y"] + track["height"] / 2)
        expect(status).to_contain_text("84")
        with page.expect_response(lambda answer: answer.request.method == "PUT" and WEEK in answer.url):
            week.choose("File", "Save Notebook")
        cells = json.loads(week.file.read_text())["cells"]
        assert [out for cell in cells for out in cell.get("outputs", []) if out["output_type"] == "error"] == []
        assert notebooks.errors() == []
