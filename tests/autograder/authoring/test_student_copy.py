"""The zip that students get: the same bytes every time, and nothing hidden in it."""

import io
import json
import posixpath
import re
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hidden_texts import found_in, hidden_lines, hidden_of_the_bank, labs, solutions, values
from quiz_class import bank_text
from quiz_samples import NUMERIC, SINGLE
from repository import ROOT
from traitlets.config import Config

from autograder.authoring.student_copy import committed_at, linked_within, self_checks, student_files
from autograder.files import packed
from worldsize import quiz
from worldsize.course import optional
from worldsize.update import contents

MAY_HOLD = (
    *(
        "AGENTS.md",
        "CLAUDE.md",
        "CONTENTS",
        "LICENSE",
        "LICENSE-TEXT.md",
        "README.md",
        "constraints.txt",
        "jupyter_lab_config.py",
        "nbgrader_config.py",
        "pyproject.toml",
    ),
    *(
        "settings/jupyter_config.py",
        "settings/pyproject.toml",
        "labs/lab*/lab*.ipynb",
        "labs/project*/report.ipynb",
        "labs/project*/train.py",
        "labs/project3/programs.py",
        "labs/report/report.ipynb",
        "weeks/week*.ipynb",
    ),
    *("docs/*.md", "quizzes/week*.toml"),
    *("worldsize/*.py", "worldsize/capstone/designs/*.toml", "worldsize/data/*"),
    *("worldsize/draw/*.css", "worldsize/draw/*.js", "worldsize/explore/*.css", "worldsize/explore/*.js"),
    "worldsize/course/manifests/schemas/*.yaml",
    "worldsize/course/watching/files/*",
)


@pytest.fixture(scope="module")
def files():
    """Everything that students get, by path."""
    return student_files(ROOT)


@pytest.fixture(scope="module")
def texts(files):
    """All of it as text, with a notebook's strings as its readers see them."""
    return {path: "\n".join(strings(path, content)) for path, content in files.items()}


def strings(path: str, content: bytes) -> Iterator[str]:
    if path.endswith(".ipynb"):
        yield from values(json.loads(content))
    else:
        yield content.decode(errors="replace")


def test_only_what_is_named_goes_in(files):
    assert [path for path in files if not any(fnmatch(path, pattern) for pattern in MAY_HOLD)] == []
    assert {path.split("/")[0] for path in files} == {pattern.split("/")[0] for pattern in MAY_HOLD}
    assert {path.split("/")[1] for path in files if path.startswith("labs/")} == {lab.name for lab in labs()}


def test_no_solution_is_in_it(texts):
    assert len(solutions()) > 6 * len(labs()) and found_in(texts, solutions()) == []


def test_no_line_of_a_hidden_check_or_of_a_known_answer_is_in_it(texts):
    assert len(hidden_lines()) > 300 * len(labs()) and found_in(texts, hidden_lines()) == []


def test_no_question_is_in_it_that_a_lesson_does_not_ask(texts):
    assert len(hidden_of_the_bank()) > 300 and found_in(texts, hidden_of_the_bank()) == []


def test_no_name_of_what_is_hidden_is_in_it(texts):
    labs_and_weeks = {path: text for path, text in texts.items() if not path.startswith("worldsize/")}
    assert found_in(labs_and_weeks, ["BEGIN SOLUTION", "BEGIN HIDDEN", "checks.py", "lab.toml", "solutions/"]) == []


def test_no_page_of_docs_is_pointed_at_that_is_not_in_it(files, texts):
    notebooks = {path: text for path, text in texts.items() if path.endswith((".ipynb", "README.md"))}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")} - {*files}
    assert len(pages) > 10 and found_in(notebooks, pages) == []


def test_every_page_that_speaks_to_students_is_in_it(files):
    beginnings = {path: "".join(path.read_text().split("\n\n")[:3]) for path in (ROOT / "docs").glob("*.md")}
    for_all = {"audit", "coming_from", "glossary", "numbers", "outages", "reading", "troubleshooting", "capstone"}
    due = {path.stem for path, text in beginnings.items() if "For students" in text} | for_all
    assert {Path(path).stem for path in files if path.startswith("docs/")} == due - {"places"}  # for who sets it up
    assert all(f"](docs/{name}.md)" in files["README.md"].decode() for name in due - {"places"})


def test_assistants_are_told_which_cells_are_the_students_own(files):
    told = files["AGENTS.md"].decode().replace("\n  ", " ")
    for words, folder in (
        ("Replace this line with your own code", "labs/"),
        ('NotImplementedError("your turn")', "weeks/"),
    ):
        notebooks = [content.decode() for path, content in files.items() if path.startswith(folder)]
        assert words in told and any(json.dumps(words)[1:-1] in notebook for notebook in notebooks)
    lesson = json.loads(files["weeks/week03_ddp_from_first_principles.ipynb"])
    lab = json.loads(files["labs/lab03/lab03.ipynb"])
    assert "tag `turn`" in told and any("turn" in cell["metadata"].get("tags", ()) for cell in lesson["cells"])
    assert '"solution": true' in told and any(
        cell["metadata"].get("nbgrader", {}).get("solution") for cell in lab["cells"]
    )
    assert files["CLAUDE.md"] == b"@AGENTS.md\n"


def test_every_link_in_it_leads_to_a_file_in_it(files):
    def broken(files):
        pages = {path: content.decode() for path, content in files.items() if path.endswith(".md")}
        links = [(path, to) for path, text in pages.items() for to in re.findall(r"\]\(([^)#:\s]+)[#)]", text)]
        assert len(links) > 40
        return [link for link in links if posixpath.normpath(posixpath.join(link[0], "..", link[1])) not in files]

    assert broken(files) == []
    assert "../weeks/week05" not in (few := student_files(ROOT, ["week01"]))["docs/glossary.md"].decode()
    assert broken(few) == [] and "../weeks/week01" in few["docs/glossary.md"].decode()


def test_a_link_to_what_is_not_there_becomes_its_text_and_code_stays():
    text = "[a](b.md) [`c`](d.md#e) [f\ng](../h.md) `x[0](b.md)` [i](#j) [k](https://l.m)\n```\nx[0](b.md)\n```\n"
    assert linked_within(text, "docs/page.md", {"docs/b.md": ()}) == text.replace(
        "[`c`](d.md#e) [f\ng](../h.md)", "`c` f\ng"
    )
    only = linked_within(text, "docs/page.md", {"h.md": ()})
    assert only.startswith("a `c` [f\ng](../h.md) `x[0](b.md)` [i](#j) [k](")


def test_a_link_to_a_cell_is_one_that_jupyterlab_follows(files):
    """It goes to a heading by `#Heading`, and to a cell only by `#cell-id=`."""
    text, known = "[a](../weeks/w.ipynb#ring) [b](../weeks/w.ipynb#A-heading) [c](../weeks/w.ipynb)", {"ring"}
    linked = linked_within(text, "docs/page.md", {"weeks/w.ipynb": known})
    assert linked == text.replace("#ring", "#cell-id=ring")
    assert files["docs/glossary.md"].decode().count(".ipynb#cell-id=") > 50
    pages = [content.decode() for path, content in files.items() if path.startswith("docs/")]
    left = {place for page in pages for place in re.findall(r"\.ipynb#(?!cell-id=)(\w+)\)", page)}
    assert not {one for one in left if one.islower()}, left


def test_its_list_of_contents_is_what_an_update_reads(files):
    listed = {path: content for path, content in files.items() if path != "CONTENTS"}
    assert files["CONTENTS"].decode() == contents(listed)


@pytest.mark.parametrize(
    ("place", "hidden"),
    [
        ("labs/lab01/lab01.ipynb", solutions),
        ("worldsize/units.py", hidden_lines),
        ("quizzes/week01.toml", hidden_of_the_bank),
    ],
)
def test_what_is_hidden_would_be_found(texts, place, hidden):
    secret = max(hidden(), key=len)
    assert f"{place} has {secret!r}" in found_in({place: f"{texts[place]}\n    {secret}"}, hidden())


def test_its_files_are_as_old_as_the_last_commit_which_a_file_browser_shows(tmp_path):
    def years(root):
        with zipfile.ZipFile(io.BytesIO(packed({"a": b""}, committed_at(root)))) as archive:
            return [info.date_time[0] for info in archive.infolist()]

    assert years(tmp_path) == [1980] and years(ROOT)[0] >= 2026


def test_its_jupyterlab_opens_the_first_lesson_that_is_there(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def opened():
        config = Config()
        exec(files["settings/jupyter_config.py"], {"get_config": lambda: config})
        assert config.ServerApp.root_dir == str(tmp_path)
        assert "ledger.json" in config.ContentsManager.hide_globs
        return config.LabApp.default_url

    (tmp_path / "weeks").mkdir()
    assert opened() == "/lab"
    for name in ("week07_late.ipynb", "week05_say_less.ipynb"):
        (tmp_path / "weeks" / name).touch()
    assert opened() == "/lab/tree/weeks/week05_say_less.ipynb"


def test_every_question_of_a_lesson_is_in_it_and_no_other(files, tmp_path):
    banks = [path for path in files if path.startswith("quizzes/")]
    assert len(banks) == len([path for path in files if path.startswith("weeks/")])
    for path in banks:
        name = Path(path).stem
        (tmp_path / f"{name}.toml").write_bytes(files[path])
        assert {question.pool for question in quiz.load(name, tmp_path).question} == {"self-check"}
        ours = quiz.ask(name, folder=ROOT / "quizzes")._repr_mimebundle_()
        assert quiz.ask(name, folder=tmp_path)._repr_mimebundle_() == ours


def test_a_comment_on_a_question_that_stays_behind_stays_behind(tmp_path):
    for kept, count in (("self-check", "weekly"), 1), (("weekly", "self-check"), 1):
        both = zip((SINGLE, NUMERIC), kept, strict=True)
        text = bank_text([re.sub('pool = ".*"', f'pool = "{pool}"', one) for one, pool in both])
        file = tmp_path / "week02.toml"
        file.write_text(text.replace("\n[[question]]", "\n# 42, the answer is 42\n[[question]]"))
        ids = [question.id for question in quiz.load("week02", tmp_path).question]
        shown, hidden = sorted(ids, key=lambda id: kept[ids.index(id)])
        assert self_checks(file).count("42, the") == count
        assert shown in self_checks(file) and hidden not in self_checks(file)


def test_lessons_go_in_as_notebooks_and_never_as_the_scripts_that_hold_their_solutions(files):
    assert {Path(path).suffix for path in files if path.startswith("weeks/")} == {".ipynb"}


def test_numbers_to_remember_of_the_chosen_weeks_are_on_one_page(files):
    assert files["docs/numbers.md"] == (ROOT / "docs/numbers.md").read_bytes()
    page = student_files(ROOT, ["week01", "week07"])["docs/numbers.md"].decode()
    assert page.startswith("# Numbers to remember\n") and "Week 7." in page and "Week 6." not in page
    assert "Week 1." not in student_files(ROOT, ["week02"])["docs/numbers.md"].decode()


def test_nbconvert_knows_the_pages_of_a_students_worldsize(files):
    project = tomllib.loads(files["pyproject.toml"].decode())["project"]
    assert project["entry-points"] == {"nbconvert.exporters": {"worldsize": "worldsize.pages:LessonExporter"}}
    assert any(one.startswith("latex2mathml") for one in project["dependencies"])


def test_the_extras_that_lessons_name_can_be_installed_and_no_instructors(files):
    """pip only warns of an extra that is not there, and installs nothing."""
    extras = tomllib.loads(files["pyproject.toml"].decode())["project"]["optional-dependencies"]
    named = {"week13"}  # which docs/schedulers.md names
    for package in optional.PACKAGES.values():
        named |= {*re.findall(r"worldsize\[(\w+)", package.command)}
    assert named <= extras.keys() and len(named) > 4
    assert not {"instructor", "site", "dev", "hub", "lti"} & extras.keys()
    assert not [line for lines in extras.values() for line in lines if line.startswith("worldsize")]
