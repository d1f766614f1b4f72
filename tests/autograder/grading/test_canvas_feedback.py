"""Feedback for Canvas: each page has the name of the file that Canvas gave out, so that Canvas finds its submission."""

import re
import zipfile

import pytest
import stand_in_judge
from commands import run
from tiny_class import hand_in, place
from tiny_lab import NAME, make_course

from autograder.grading.reports.canvas_feedback import names_from_canvas
from autograder.tables.roster import Student

CLASS = """\
Student,ID,SIS User ID,SIS Login ID,Section
"Lovelace, Ada",4711,,ada,Mon
"Khan, Noor",4712,,noor,Mon
"Ott, Zoe",4713,,zoe,Mon
"Lee, Kim",4714,,kim,Mon
"Lee, Kim",4715,,kim2,Mon
"""
NAMES = {
    "ada": f"lovelaceada_4711_900_{NAME}-1.ipynb",
    "noor": "khannoor_LATE_4712_901_My lab (2)_5_6.ipynb",
    "kim": f"leekim_4714_902_{NAME}.ipynb",
    "kim2": f"leekim_4715_903_{NAME}.ipynb",
}


def read_as_canvas_does(name):
    """The student's and the file's number, by `infer_comment_context_from_filename` of instructure/canvas-lms."""
    parts = [part for part in name.split("_") if part != "LATE"]
    return [part for part in parts if re.fullmatch(r"\d+", part)][:2]


def pages_in(archive):
    with zipfile.ZipFile(archive) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def do(root, *command):
    done = run(root, *command)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A class whose work came from Canvas, except zoe's, graded by a judge that runs nothing."""
    root = tmp_path_factory.mktemp("course")
    make_course(root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write("c.FileNames.system = 'canvas'\n")
    (root / "gradebook.csv").write_text(CLASS)
    do(root, "autograder", "roster", "import", "gradebook.csv")
    do(root, "nbgrader", "generate_assignment", NAME, "--force")
    for student in ("ada", "zoe"):
        hand_in(root, student)
    solved = (root / "submitted/ada" / NAME / f"{NAME}.ipynb").read_text()
    archive = root / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "submissions.zip", "w") as file:
        for name in NAMES.values():
            file.writestr(name, solved)
        file.writestr("khannoor_LATE_4712_899_notes.ipynb.txt", "mine")
        file.writestr("adamseve_99_904_report.ipynb", solved)
    do(root, "nbgrader", "zip_collect", NAME, "--force")
    code, text, _ = stand_in_judge.run(root, "autograder", "grade", NAME, patience_s=120)
    assert code == 0, text
    return root


def test_each_page_goes_to_the_submission_that_canvas_gave_out(course):
    said = do(course, "autograder", "feedback", NAME, "--canvas", "feedback.zip")
    pages = pages_in(course / "feedback.zip")
    for student, name in NAMES.items():
        page = pages.pop(name.replace(".ipynb", ".html"))
        assert page == (course / "feedback" / student / NAME / f"{NAME}.html").read_text()
    assert pages == {}
    assert [read_as_canvas_does(name.replace(".ipynb", ".html")) for name in NAMES.values()] == [
        ["4711", "900"],
        ["4712", "901"],
        ["4714", "902"],
        ["4715", "903"],
    ]
    assert "Written: feedback.zip, with 4 pages." in said
    assert f"Not from Canvas, so not in it: zoe. Their pages are feedback/STUDENT/{NAME}/{NAME}.html." in said


def test_only_the_students_who_are_named_are_in_it(course):
    said = do(course, "autograder", "feedback", NAME, "noor", "--canvas", "noor.zip")
    assert [*pages_in(course / "noor.zip")] == [NAMES["noor"].replace(".ipynb", ".html")]
    assert "with 1 page." in said and "Not from Canvas" not in said


def test_without_an_archive_nothing_is_written_and_a_sentence_says_why(course, tmp_path):
    make_course(tmp_path)
    (tmp_path / "roster.csv").write_text("id,lms id\nada,4711\n")
    place(tmp_path, "ada", "{")
    do(tmp_path, "nbgrader", "generate_assignment", NAME, "--force")
    code, text, _ = stand_in_judge.run(tmp_path, "autograder", "grade", NAME, patience_s=120)
    assert code == 0, text
    done = run(tmp_path, "autograder", "feedback", NAME, "--canvas", "feedback.zip")
    assert done.returncode == 1 and not (tmp_path / "feedback.zip").exists()
    assert f"downloaded/{NAME}/extracted has no file of Canvas's" in done.stdout


def test_of_several_files_the_newest_notebook_counts_and_a_students_archive_is_one_file(tmp_path):
    unpacked = tmp_path / "extracted"
    for name in (
        "submissions/lovelaceada_4711_900_lab01.ipynb",
        "submissions/lovelaceada_4711_1000_lab01-1.ipynb",
        "submissions/lovelaceada_4711_1001_notes.py",
        "submissions/khannoor_4712_901_work.zip",
        "submissions/khannoor_4712_901_work/lovelaceada_4711_2000_lab01.ipynb",
        "submissions/anon_4713_901_lab01.ipynb",
        "__MACOSX/._lovelaceada_4711_3000_lab01.ipynb",
    ):
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_text("")
    people = [Student("ada", lms_id="4711"), Student("noor", lms_id="4712"), Student("zoe", lms_id="4713")]
    assert names_from_canvas(unpacked, people) == {
        "ada": "lovelaceada_4711_1000_lab01-1.ipynb",
        "noor": "khannoor_4712_901_work.zip",
    }
