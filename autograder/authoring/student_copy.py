"""Packing the students' copy of the course: weeks, labs, `worldsize` and self-checks in one zip, without answers.

Only files named here are packed. Notebooks are built afresh, so that edits to a built lab are not handed out.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

from autograder.authoring.notebooks import build_fresh, find_sources
from autograder.authoring.numbers_page import PAGE, numbers_page
from autograder.files import packed
from worldsize import quiz
from worldsize.files import replace_file
from worldsize.quiz.bank import FOLDER
from worldsize.update import CONTENTS, contents

TOP = "worldsize-course"  # the top folder in the zip
_TEMPLATES = Path(__file__).parents[1] / "templates" / "student_copy"
_AS_THEY_ARE = ("LICENSE", "LICENSE-TEXT.md", "constraints.txt", "jupyter_lab_config.py")
_PAGES = (  # of docs/, that speak to students
    "audit",
    "calibration",
    "capstone",
    "clusters",
    "coming_from",
    "experiments",
    "glossary",
    "hangs",
    "outages",
    "paper",
    "plan",
    "projects",
    "reading",
    "schedulers",
    "troubleshooting",
)
_OF_OTHERS = ("instructor", "dev", "site", "hub", "lti", "transformers")  # extras that lessons do not use
# a link, unless it stands in code: there `x[0](y)` is a call
_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]*`|\[(?P<text>[^\]]*)\]\((?P<page>[^)#\s:]+)(?:#(?P<place>[^)\s]*))?\)", re.M | re.S
)
_QUESTION = re.compile(r"^(?=\[\[question\]\]\s*$)", re.MULTILINE)


def write_student_copy(root: Path, to: Path, names: Sequence[str] = ()) -> list[str]:
    """Write a zip of the course, with all weeks and labs or those called `names`, and return the paths in it.

    Raises:
        ValueError: there is no such week or lab, or one cannot be built, or the bank lacks a question of a lesson.
    """
    files = dict(sorted(student_files(root, names).items()))
    to.parent.mkdir(parents=True, exist_ok=True)
    replace_file(to, packed({f"{TOP}/{path}": content for path, content in files.items()}, committed_at(root)))
    return list(files)


def committed_at(root: Path) -> float:
    """When the course was last committed, in seconds since 1970; 0 where git does not know."""
    try:
        asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True)
    except OSError:  # there is no git
        return 0.0
    return float(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else 0.0


def student_files(root: Path, names: Sequence[str] = ()) -> dict[str, bytes]:
    """The contents of all files that students get, by path. Raises: ValueError."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    files = {name: (root / name).read_bytes() for name in _AS_THEY_ARE}
    files |= {name: (_TEMPLATES / name).read_bytes() for name in ("AGENTS.md", "CLAUDE.md", "README.md")}
    files["nbgrader_config.py"] = (_TEMPLATES / "nbgrader_config.txt").read_bytes()
    files["settings/pyproject.toml"] = (_TEMPLATES / "settings.toml").read_bytes()
    files["settings/jupyter_config.py"] = files["jupyter_lab_config.py"]
    files["pyproject.toml"] = student_project(project).encode()
    files |= dict(_notebooks(root, names))
    files |= dict(_numbers(root, names))
    files |= dict(_library(root, project))
    files |= {f"{FOLDER}/{bank.name}": self_checks(bank).encode() for bank in banks_of_weeks(root, names)}
    pages = {f"docs/{name}.md": (root / f"docs/{name}.md").read_text(encoding="utf-8") for name in _PAGES}
    cells = {path: _cell_ids(content) if path.endswith(".ipynb") else frozenset() for path, content in files.items()}
    known = {**cells, **dict.fromkeys(pages, frozenset[str]())}
    files |= {path: linked_within(text, path, known).encode() for path, text in pages.items()}
    return {**files, CONTENTS: contents(files).encode()}


def linked_within(text: str, page: str, known: Mapping[str, Container[str]]) -> str:
    """The Markdown of a page with each link to a file that is not `known` reduced to its text.

    `known` has the ids of the cells of each notebook; JupyterLab goes to one of them only by `#cell-id=`.
    """

    def link(match: re.Match) -> str:
        if match["page"] is None:
            return match[0]
        cells = known.get(posixpath.normpath(posixpath.join(page, "..", match["page"])))
        if cells is None:
            return match["text"]
        return f"[{match['text']}]({match['page']}#cell-id={match['place']})" if match["place"] in cells else match[0]

    return _LINK.sub(link, text)


def _cell_ids(notebook: bytes) -> frozenset[str]:
    return frozenset(cell["id"] for cell in json.loads(notebook)["cells"])


def banks_of_weeks(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """The bank's files with the questions that the lessons of these weeks ask. Raises: ValueError."""
    banks = [root / FOLDER / f"{script.stem.partition('_')[0]}.toml" for script in find_sources(root, names).weeks]
    return [bank for bank in banks if bank.is_file()]


def self_checks(file: Path) -> str:
    """The text of a bank's file, reduced to its self-check questions. Raises: ValueError."""
    head, *texts = _QUESTION.split(file.read_text(encoding="utf-8"))
    questions = quiz.load(file.stem, file.parent).question
    kept = [question.pool == "self-check" for question in questions]
    text = head + "".join(text for text, keep in zip(texts, kept, strict=True) if keep)
    text = re.sub(r"\n(?:#.*\n|\n)*\Z", "\n", text)  # a comment at the end belongs to the next question
    whole = tomllib.loads(file.read_text(encoding="utf-8"))
    wanted = {**whole, "question": [one for one, keep in zip(whole["question"], kept, strict=True) if keep]}
    if tomllib.loads(text) != wanted:
        raise ValueError(f"{file.name} cannot be split into questions: begin each with a line [[question]].")
    return text


def student_project(project: Mapping) -> str:
    """The pyproject.toml for students: only `worldsize` and the extras that lessons use."""
    left_out = ("optional-dependencies", "entry-points")
    extras = project["project"].get("optional-dependencies", {})
    about = {key: value for key, value in project["project"].items() if key not in left_out}
    entry_points = project["project"].get("entry-points", {})
    setuptools = project["tool"]["setuptools"]
    tables = {
        "build-system": project["build-system"],
        "project": about,
        "project.optional-dependencies": {name: extras[name] for name in extras if name not in _OF_OTHERS},
        **{f'project.entry-points."{group}"': points for group, points in entry_points.items()},
        "tool.setuptools.packages.find": setuptools["packages"]["find"],
        "tool.setuptools.package-data": setuptools["package-data"],
    }
    # strings and lists of strings are written alike in JSON and TOML
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def _notebooks(root: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder).resolve()
        for path in build_fresh(root, fresh, names):
            if path.parts[0] in ("weeks", "labs"):
                yield path.as_posix(), (fresh / path).read_bytes()


def _numbers(root: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The page with the numbers to remember of these weeks, if they have any."""
    page = numbers_page(find_sources(root, names).weeks)
    if "\n## " in page:
        yield PAGE.as_posix(), page.encode()


def _library(root: Path, project: Mapping) -> Iterator[tuple[str, bytes]]:
    data = project["tool"]["setuptools"]["package-data"]["worldsize"]
    for pattern in ("**/*.py", *data):
        for path in (root / "worldsize").glob(pattern):
            if path.is_file():
                yield path.relative_to(root).as_posix(), path.read_bytes()
