"""A student's first hour and second day: the zip, its README to the letter in an empty environment, and a newer zip."""

import re
import shutil
import subprocess
import zipfile

import nbformat
import pytest
from conftest import Notebook
from playwright.sync_api import expect
from repository import ROOT

from autograder.authoring.known_answers import compose, solution_cells
from autograder.authoring.student_copy import TOP, committed_at, student_files, write_student_copy
from autograder.files import packed
from worldsize.update import CONTENTS, contents

pytestmark = [pytest.mark.browser, pytest.mark.nightly("minutes of installing"), pytest.mark.timeout(2400)]
WEEK = "weeks/week01_why_one_gpu_is_not_enough.ipynb"
LAB = "labs/lab01/lab01.ipynb"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The folder of a student who has unpacked the zip and installed it as its README says."""
    folder = tmp_path_factory.mktemp("downloads")
    write_student_copy(ROOT, folder / "student.zip")
    with zipfile.ZipFile(folder / "student.zip") as archive:
        archive.extractall(folder)
    blocks = commands(folder / TOP)
    shell(folder / TOP, "deactivate 2>/dev/null || true\n" + blocks[0])
    return folder / TOP


def commands(course):
    """The blocks of the README, in order: to install, to start, to validate, to update."""
    return re.findall(r"^```sh\n(.*?)^```$", (course / "README.md").read_text(), re.M | re.S)


def shell(course, script):
    ended = subprocess.run(["bash", "-ec", script], cwd=course, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def test_jupyterlab_opens_week_1_and_a_lab_and_asks_for_nothing(course, start_lab, browser, tmp_path, screenshots):
    start = f'source .venv/bin/activate && exec {commands(course)[1].strip()} "$@"'
    with start_lab(course, tmp_path, "bash", "-c", start, "jupyter") as lab:
        page = browser.new_context(viewport={"width": 1366, "height": 768}).new_page()
        page.goto(lab.first_page)
        Notebook(page, course / WEEK).wait_for_kernel()
        expect(page.get_by_role("heading", name="Week 1. Why one GPU is not enough")).to_be_visible()
        assert page.locator(".jp-Dialog, .Toastify__toast").all_inner_texts() == []
        page.screenshot(path=screenshots / "student_week01.png")
        page.goto(f"{lab.url}lab/workspaces/alone/tree/{LAB}?token={lab.token}")
        notebook = Notebook(page, course / LAB)
        notebook.wait_for_kernel()
        said = notebook.add_and_run(
            "import worldsize as ws\nprint(ws.run(lambda: 6, world_size=2).values, ws.__file__)"
        )
        assert f"[6, 6] {course}/worldsize/__init__.py" in said
        page.screenshot(path=screenshots / "student_lab01.png")
        assert lab.errors() == []


def test_validate_names_what_is_missing_and_then_passes(course):
    validate = "source .venv/bin/activate\n" + commands(course)[2]
    shutil.copy(course / LAB, course / "as_given.ipynb")
    assert "The following cell failed:\n\n    check_rank_batches\n" in shell(course, validate)
    notebook = nbformat.read(course / LAB, as_version=4)
    nbformat.write(compose(notebook, solution_cells(ROOT / "solutions/lab01/lab01.py")), course / LAB)
    assert shell(course, validate) == "Success! Your notebook passes all the tests.\n"
    shutil.move(course / "as_given.ipynb", course / LAB)


def test_a_newer_zip_is_taken_in_on_the_second_day(course):
    files = student_files(ROOT)
    files |= {LAB: files[LAB] + b"\n", WEEK: files[WEEK] + b"\n", "docs/new.md": b"# New\n"}
    files[CONTENTS] = contents({path: one for path, one in files.items() if path != CONTENTS}).encode()
    newer = course.parent / "student.zip"
    newer.write_bytes(packed({f"{TOP}/{path}": one for path, one in files.items()}, committed_at(ROOT)))
    (course / LAB).write_text("mine")
    update = commands(course)[3].replace("~/Downloads", str(course.parent))
    said = shell(course, "source .venv/bin/activate\n" + update)
    assert said.splitlines()[0] == "Written: 2 files; removed: 0."
    assert f"  {LAB}: labs/lab01/lab01.new.ipynb\n" in said
    assert (course / LAB).read_text() == "mine" and (course / "docs/new.md").is_file()
