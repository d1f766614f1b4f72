"""Every block of README.md and docs/, run as it is printed and in order, in a fresh copy of the course.

`sh` and `python` blocks run; a block with a file name after its language is that file, or the end of one that is there;
`text` is what the block before it printed.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from made_results import made_result
from needs import is_required
from quiz_class import right
from repository import ROOT

from autograder.authoring.known_answers import compose, solution_cells
from autograder.quiz.key import read_key
from autograder.quiz.whole_bank import read_bank

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)(?: (?P<file>\S+))?\n(?P<text>.*?)^```$",
    re.M | re.S,
)
NOT_RUN = {
    ("README.md", "make demo"),
    ("README.md", "make lab"),
    ("README.md", "nbgrader validate labs/lab01/lab01.ipynb"),
    ("README.md", "papermill weeks/week01_why_one_gpu_is_not_enough.ipynb"),
    ("docs/benchmark.md", "autograder bench labs/project1/train.py"),
    ("docs/benchmark.md", "make gpu"),
    ("docs/grading.md", "An audit of this run found"),
    ("docs/grading.md", "autograder verify lab01"),
    ("docs/monday.md", "make setup"),
    ("docs/monday.md", "jupyter lab"),
    ("docs/hub.md", "python3 -m venv /opt/ngshare"),
    ("docs/hub.md", "make setup"),
    ("docs/hub.md", "pip install"),
    ("docs/hub.md", "autograder passback"),
    ("docs/hub.md", "git init"),
    ("docs/hub.md", "nbgrader submit lab01"),
    ("docs/hub.md", "nbgrader collect lab01"),
    ("docs/places.md", "unzip -q student.zip\ncd worldsize-course"),
    ("docs/places.md", "unzip -q student.zip\ndocker build"),
    ("docs/places.md", "unzip -q student.zip && mv"),
    ("docs/projects.md", "cd labs/project1\npapermill report.ipynb"),
    ("docs/quizzes.md", "autograder quiz preview"),
    ("docs/sandbox.md", "autograder grade lab01 --allow-untrusted"),
}
# what is put in front of a program: one that is not on every machine, or that does not start for root
STAND_INS = {
    # without a Slurm, which a page may have started, the job runs here, now
    "sbatch": '#!/bin/bash\ntest -z "$SLURM_CONF" || exec {sbatch} "$@"\n'
    'SLURM_JOB_ID=1 SLURM_SUBMIT_DIR="$PWD" exec bash "$@"\n',
    # Chromium's own sandbox refuses root
    "chromium": '#!/bin/bash\nexec {chromium} --no-sandbox "$@"\n',
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, its language, the file that it is, and why it is not run."""

    page: str
    language: str
    file: str
    reason: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [match.groupdict(default="") for match in FENCE.finditer(text)]
    return [Block(page, one["language"], one["file"], one["reason"], one["text"]) for one in found]


PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCKS = {page: blocks(page) for page in PAGES}
RUN = [page for page in PAGES if any(not block.reason for block in BLOCKS[page])]
LONG = {
    f"docs/{name}.md"
    for name in (
        "benchmark",
        "calibration",
        "experiments",
        "grading",
        "monday",
        "places",
        "quizzes",
        "scaling",
        "term",
    )
}


# What a reader has done before a block: by its page and its first words.


def hand_in_lab01(course: Path) -> None:
    """Let ada hand in the solution, and noor half a file."""
    release = nbformat.read(course / "labs/lab01/lab01.ipynb", as_version=4)
    text = nbformat.writes(compose(release, solution_cells(course / "solutions/lab01/lab01.py")))
    _place(course / "submitted/ada/lab01/lab01.ipynb", text)
    _place(course / "submitted/noor/lab01/lab01.ipynb", text[: len(text) // 2])


def hand_in_a_damaged_file(course: Path) -> None:
    """Let noor hand in what cannot be read, which is graded in no time."""
    _place(course / "submitted/noor/lab01/lab01.ipynb", "{")


def download_an_archive(course: Path) -> None:
    """Put an archive of an LMS, with a file of zoe, where `zip_collect` looks."""
    archive = course / "downloaded/lab01/archive/lab01.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.write(course / "labs/lab01/lab01.ipynb", "Lab 1_zoe_attempt_2026-11-29-18-30-59_lab01.ipynb")


def download_from_canvas(course: Path) -> None:
    """Put Canvas's archive there: damaged files, which are graded in no time, and that of somebody who is nobody."""
    names = (
        "lovelaceada_4711_98765_lab01-1.ipynb",
        "ottzoe_LATE_4713_98766_My Lab (2).ipynb",
        "adamseve_4888_98767_lab01.ipynb",
    )
    with zipfile.ZipFile(course / "downloaded/lab01/archive/submissions.zip", "w") as file:
        for name in names:
            file.writestr(name, "{")


def answer_the_quiz(course: Path) -> None:
    """Write the responses of a class that knows everything."""
    with open(course / "responses.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["student", "question", "response"])
        for form in read_key(course / "module/answers/key.json", read_bank(course / "quizzes")):
            for number, variant in enumerate(form.variants, start=1):
                rows.writerow([form.student.id, number, right(variant.answer)])


def hand_in_the_quiz(course: Path) -> None:
    """Let ada hand in the notebook that she was given, empty."""
    handed_out = course / "handouts/quiz_module/ada/quiz_module.ipynb"
    _place(course / "submitted/ada/quiz_module/quiz_module.ipynb", handed_out.read_text())


def write_the_program(course: Path) -> None:
    """Solve project 1."""
    shutil.copy(course / "solutions/project1/train.py", course / "labs/project1")


def hand_in_project1(course: Path) -> None:
    """Let noor forget the program, which costs no time; ada has been measured before."""
    _place(course / "submitted/noor/report.ipynb", (course / "labs/project1/report.ipynb").read_text())
    _place(course / "build/bench/project1/ada/result.json", made_result().model_dump_json())


def collect_project1(course: Path) -> None:
    """Put noor's submission where nbgrader collects it."""
    _place(course / "submitted/noor/project1/report.ipynb", (course / "labs/project1/report.ipynb").read_text())


def write_the_second_program(course: Path) -> None:
    """Solve project 2."""
    shutil.copy(course / "solutions/project2/train.py", course / "labs/project2")


def collect_project2(course: Path) -> None:
    """Let noor forget the program of project 2, too."""
    _place(course / "submitted/noor/project2/report.ipynb", (course / "labs/project2/report.ipynb").read_text())


def collect_project3(course: Path) -> None:
    """Let noor forget the programs of project 3 as well."""
    _place(course / "submitted/noor/project3/report.ipynb", (course / "labs/project3/report.ipynb").read_text())


BEFORE: dict[tuple[str, str], Callable[[Path], None]] = {
    ("README.md", "nbgrader generate_assignment lab01"): hand_in_a_damaged_file,
    ("docs/projects.md", "cd labs/project1\ntorchrun"): write_the_program,
    ("docs/benchmark.md", "autograder bench project1"): hand_in_project1,
    ("docs/benchmark.md", "nbgrader generate_assignment project1"): collect_project1,
    ("docs/projects.md", "cd labs/project2\ntorchrun"): write_the_second_program,
    ("docs/benchmark.md", "nbgrader generate_assignment project2"): collect_project2,
    ("docs/benchmark.md", "nbgrader generate_assignment project3"): collect_project3,
    ("docs/grading.md", "nbgrader autograde lab01\n"): hand_in_lab01,
    ("docs/grading.md", "nbgrader zip_collect lab01"): download_an_archive,
    ("docs/monday.md", "nbgrader zip_collect lab01"): download_from_canvas,
    ("docs/term.md", "autograder status\n"): hand_in_a_damaged_file,
    ("docs/term.md", "autograder similar lab01"): hand_in_lab01,
    ("docs/quizzes.md", "autograder quiz mark"): answer_the_quiz,
    ("docs/quizzes.md", "nbgrader autograde quiz_module"): hand_in_the_quiz,
}


def _place(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# What a page must have brought about, beyond commands that end well.


def lateness_was_charged(course: Path) -> None:
    """A day begun costs ada 10% of her 22 points; zoe, whom the archive brought, waits to be graded."""
    with open(course / "grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert (float(rows["ada"]["raw_score"]), rows["ada"]["late_submission_penalty"]) == (22, "2.2")
    assert rows["ada"]["email"] == "ada@example.org" and rows["noor"]["score"] == "0.0"
    assert (course / "submitted/zoe/lab01/lab01.ipynb").exists() and rows["zoe"]["score"] == ""
    assert rows["zoe"]["status"] == "waiting to be graded"


def everybody_knew_everything(course: Path) -> None:
    """Marking gave full marks, and only the formats said to hold answers hold them."""
    with open(course / "marks/scores.csv", newline="") as file:
        assert {row["percent"] for row in csv.DictReader(file)} <= {"100", "100.0"}
    found = {path.relative_to(course / "module").as_posix() for path in (course / "module").glob("*/*")}
    answers = ("moodle", "canvas", "qti21", "key.pdf", "key.html", "key.csv", "key.json")
    handouts = {f"handouts/{name}" for name in ("html", "pdf", "md", "ipynb")}
    assert found == handouts | {f"answers/{name}" for name in answers}


def the_page_shows_who_was_measured(course: Path) -> None:
    """Ada's program is on the page of results; noor's missing one got a verdict."""
    assert "aaaaaaaa" in (course / "leaderboard.html").read_text(encoding="utf-8")
    assert "no train.py" in (course / "build/bench/project1/noor/report.json").read_text(encoding="utf-8")


def the_term_is_on_two_pages(course: Path) -> None:
    """One page shows that noor's file waits; the other compares ada's work, and finds nobody to compare it with."""
    assert "lab01, to be graded: noor; `autograder grade lab01`." in (course / "status.html").read_text(
        encoding="utf-8"
    )
    assert "No pair has a similarity of 0.94 or more." in (course / "similar-lab01.html").read_text(encoding="utf-8")


def canvas_gets_scores_and_pages(course: Path) -> None:
    """Both who handed in have a score under Canvas's number; zoe's page is named as Canvas named her file."""
    with open(course / "grades-canvas.csv", newline="") as file:
        rows = {row["ID"]: row["Lab 1 (5501)"] for row in csv.DictReader(file)}
    assert rows == {"": "25.0", "4711": "0.0", "4712": "", "4713": "8.0"}
    with zipfile.ZipFile(course / "feedback.zip") as archive:
        assert archive.namelist() == ["ottzoe_LATE_4713_98766_My Lab (2).html"]
    assert [path.name for path in course.glob("submitted/ada/lab01/*")] == ["lab01.ipynb"]
    assert (course / "submitted/zoe/lab01/My Lab (2).ipynb").exists() and not (course / "submitted/eve").exists()


AFTER = {
    "docs/monday.md": canvas_gets_scores_and_pages,
    "docs/term.md": the_term_is_on_two_pages,
    "docs/benchmark.md": the_page_shows_who_was_measured,
    "docs/grading.md": lateness_was_charged,
    "docs/quizzes.md": everybody_knew_everything,
}


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """The files that git tracks, the environment at its place, and the stand-ins in front."""
    folder = tmp_path / "course"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (tmp_path / "bin").mkdir()
    real = {name: shutil.which(name) for name in STAND_INS}
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(text.format(**real))
        (tmp_path / "bin" / name).chmod(0o755)
    return folder


def run(block: Block, course: Path) -> str:
    """What a block prints; fails with it unless the block ends well."""
    programs = os.pathsep.join([str(course.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    if block.language == "python":
        (course / "block.py").write_text(block.text, encoding="utf-8")
    command = [sys.executable, "block.py"] if block.language == "python" else ["bash", "-e", "-c", block.text]
    done = subprocess.run(
        command,
        cwd=course,
        env={**os.environ, "PATH": programs, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{block.page} says:\n{block.text}\nand that gives:\n{done.stdout}"
    return done.stdout


def prepare(block: Block, course: Path) -> None:
    """Do what a reader has done before this block."""
    for entry, step in BEFORE.items():
        if _begins(block, entry):
            step(course)


def is_possible(block: Block) -> bool:
    """False where this machine lacks a program that has no stand-in, unless the test run requires it."""
    return not block.text.startswith("chromium") or is_required("browser") or shutil.which("chromium") is not None


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.nightly("nearly a minute") if page in LONG else ()) for page in RUN]
)
def test_a_page_can_be_followed_to_the_letter(course: Path, page: str) -> None:
    printed = ""
    for block in BLOCKS[page]:
        if block.reason or not block.language or not is_possible(block):
            continue
        prepare(block, course)
        if block.language == "text":
            assert block.text in printed
        elif block.file:
            with open(course / block.file, "a" if block.language == "python" else "w", encoding="utf-8") as file:
                file.write(block.text)
        else:
            printed = run(block, course)
    AFTER.get(page, lambda course: None)(course)


def test_a_command_that_fails_is_shown_with_its_page(course: Path):
    with pytest.raises(AssertionError, match=r"docs/x\.md says:\n(?s:.*)no such quiz"):
        run(Block("docs/x.md", "sh", "", "", "echo no such quiz\nfalse\ntrue\n"), course)


def everything() -> Iterator[Block]:
    return (block for page in PAGES for block in BLOCKS[page])


def test_every_block_is_run_unless_a_reason_is_given_in_the_source():
    fences = sum((ROOT / page).read_text(encoding="utf-8").count("\n```") for page in PAGES)
    assert fences == 2 * len([*everything()]), "a fence or a remark is written otherwise"
    assert {block.language for block in everything()} == {"sh", "python", "csv", "markdown", "text", "toml", ""}
    drawn = [block.page for block in everything() if not block.language]  # a report and pictures, to look at
    assert drawn == ["README.md", *["docs/experiments.md"] * 2, *["docs/hangs.md"] * 4, *["docs/processes.md"] * 4]
    not_run = [block for block in everything() if block.reason]
    pinned = {entry for block in not_run for entry in NOT_RUN if _begins(block, entry)}
    assert pinned == NOT_RUN and len(not_run) == len(NOT_RUN)
    named = [name for block in not_run for name in re.findall(r"tests/\S+\.py", block.reason)]
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_preparation_belongs_to_a_block():
    unused = {entry for entry in BEFORE if not any(_begins(block, entry) for block in BLOCKS[entry[0]])}
    assert unused == set() and set(AFTER) <= set(PAGES)


def _begins(block: Block, entry: tuple[str, str]) -> bool:
    return block.page == entry[0] and block.text.startswith(entry[1])


@pytest.mark.parametrize(
    "left_behind",
    [
        "downloaded/lab01/archive/lab01.zip",
        "class.csv",
        "gradebook.csv",
        "feedback.zip",
        "extensions.csv",
        "module.key",
        "module/answers/key.json",
        "module/handouts/pdf/ada.pdf",
        "module/summary.txt",
        "week2/answers/moodle/ada.moodle.xml",
        "exam/answers/qti21/ada.qti21.zip",
        "elsewhere/key.pdf",
        "solutions/quiz_module/x.ipynb",
        "marks/scores.csv",
        "responses.csv",
        "roster.csv",
        "students.csv",
        "student.zip",
    ],
)
def test_git_ignores_students_work_and_keys(left_behind: str):
    subprocess.run(["git", "check-ignore", "--quiet", "--no-index", left_behind], cwd=ROOT, check=True)


def test_git_ignores_no_file_of_the_course():
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
