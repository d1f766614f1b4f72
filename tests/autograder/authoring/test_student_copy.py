"""The zip that students get: the same bytes every time, and nothing hidden in it."""

import ast
import json
import textwrap
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from commands import run
from quiz_class import bank_text
from quiz_samples import NUMERIC, SINGLE
from repository import ROOT
from tiny_lab import NAME, make_course

from autograder.authoring import student_copy
from autograder.authoring.programs import authored
from autograder.authoring.scripts import Cell, parse, split_solution
from autograder.authoring.student_copy import TOP, asked_by_lessons, self_checks, student_files, write_student_copy
from autograder.course import notebook_of
from worldsize import quiz

MAY_HOLD = (
    *("LICENSE", "README.md", "constraints.txt", "pyproject.toml"),
    *("labs/lab*/lab*.ipynb", "labs/project*/report.ipynb", "labs/project*/train.py", "weeks/week*.ipynb"),
    *("quizzes/week*.toml", "worldsize/*.py", "worldsize/data/*", "worldsize/draw/*.css", "worldsize/draw/*.js"),
)
LONG = 40  # characters: a shorter line is anybody's
SHORT = 12  # of a formula
ANYBODYS = {
    "folder.mkdir(parents=True, exist_ok=True)",
    "picture: Callable[[], Drawn] | None = None,",
    "rank, size = dist.get_rank(), dist.get_world_size()",
}


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


def values(node: object) -> Iterator[str]:
    """Every string in JSON or TOML; a list of lines is also one text, as in a notebook."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, inner in node.items():
            yield str(key)
            yield from values(inner)
    elif isinstance(node, list):
        if node and all(isinstance(one, str) for one in node):
            yield "".join(node)
        for inner in node:
            yield from values(inner)
    elif node is not None:
        yield str(node)


def long_lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if len(line.strip()) > LONG}


def labs() -> list[Path]:
    return sorted(path for path in (ROOT / "solutions").iterdir() if (path / "checks.py").exists())


def scripts() -> list[Path]:
    """Every script that students get without its solutions."""
    return [path for lab in labs() for path in (lab / f"{notebook_of(lab.name)}.py", *authored(lab))]


def given_and_solved(cell: Cell) -> tuple[str, str]:
    """What students get of a cell, and what they do not; of an answer in words that is all of it."""
    if cell.is_solution and "BEGIN SOLUTION" not in cell.source:
        return "", cell.source
    parts = split_solution(cell.source)
    return "\n".join(parts[0]), textwrap.dedent("\n".join(parts[1])).strip()


@cache
def solutions() -> frozenset[str]:
    """Every solution as a whole, and each of its long strings."""
    return frozenset(_solutions())


def _solutions() -> Iterator[str]:
    for script in scripts():
        for cell in parse(script).cells:
            _, solution = given_and_solved(cell)
            yield from literals(solution)
            if len(solution) > LONG:
                yield solution


def literals(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # an answer in words, or a part of a function
        return
    found = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from (text for text in found if len(text) > LONG)


@cache
def hidden_lines() -> set[str]:
    """The long lines of hidden checks, of known answers and of solutions that no lab gives away."""
    cells = [given_and_solved(cell) for script in scripts() for cell in parse(script).cells]
    open_text = "\n".join(given for given, _ in cells)
    found = {line for _, solution in cells for line in long_lines(solution)}
    for lab in labs():
        for path in (lab / "checks.py", *lab.glob("wrong/**/*.py"), *lab.glob("right/**/*.py")):
            found |= long_lines(path.read_text(encoding="utf-8"))
    return {line for line in found - ANYBODYS if line not in open_text and not line.startswith(("from ", "import "))}


@cache
def hidden_of_the_bank() -> set[str]:
    """Ids, texts, answers and formulas of every question that no lesson asks."""
    asked = {id for ids in asked_by_lessons(ROOT).values() for id in ids}
    questions = [
        question
        for file in sorted((ROOT / "quizzes").glob("*.toml"))
        for question in tomllib.loads(file.read_text(encoding="utf-8")).get("question", [])
    ]
    shown = "\n".join(text for one in questions if one["id"] in asked for text in values(one))
    hidden = {one["id"] for one in questions if one["id"] not in asked}
    for one in questions:
        if one["id"] not in asked:
            hidden |= {line for text in values(one) for line in long_lines(text) if line not in shown}
            hidden |= {formula for formula in formulas(one) if len(formula) > SHORT and formula not in shown}
    return hidden


def formulas(node: object, is_answer: bool = False) -> Iterator[str]:
    """Everything in a question that computes an answer."""
    if isinstance(node, dict):
        for key, inner in node.items():
            yield from formulas(inner, is_answer or key in ("answer", "value", "where", "require"))
    elif isinstance(node, list):
        for inner in node:
            yield from formulas(inner, is_answer)
    elif is_answer and isinstance(node, str):
        yield node


def found_in(texts: dict[str, str], hidden: Iterable[str]) -> list[str]:
    return sorted(f"{path} has {line!r}" for line in set(hidden) for path, text in texts.items() if line in text)


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
    assert found_in(labs_and_weeks, ["BEGIN SOLUTION", "BEGIN HIDDEN", "checks.py", "proven.json", "solutions/"]) == []


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


def test_every_question_of_a_lesson_is_in_it(files, tmp_path):
    asked = asked_by_lessons(ROOT)
    assert len(asked) == len([path for path in files if path.startswith("weeks/")])
    for name, ids in asked.items():
        (tmp_path / f"{name}.toml").write_bytes(files[f"quizzes/{name}.toml"])
        assert [question.id for question in quiz.load(name, tmp_path).question] == ids
        ours = quiz.ask(name, folder=ROOT / "quizzes")._repr_mimebundle_()
        assert quiz.ask(name, folder=tmp_path)._repr_mimebundle_() == ours


def test_a_comment_on_a_question_that_stays_behind_stays_behind(tmp_path):
    text = bank_text([SINGLE, NUMERIC]).replace("\n[[question]]", "\n# 42, the answer is 42\n[[question]]")
    file = tmp_path / "week02.toml"
    file.write_text(text)
    first, second = (question.id for question in quiz.load("week02", tmp_path).question)
    assert self_checks(file, [first]).count("42, the") == 1 and second not in self_checks(file, [first])
    assert first not in self_checks(file, [second])


def test_a_lesson_says_how_many_questions_it_asks(tmp_path):
    source = 'quiz.ask("week02", 1, seed=seed)\nquiz.ask(name="week03", num_questions=2)\nquiz.ask("week04")'
    assert [*student_copy._calls(source)] == [("week02", 1), ("week03", 2), ("week04", 5)]


def test_the_command_writes_the_same_bytes_every_time_and_only_the_weeks_that_are_named(tmp_path):
    done = run(ROOT, "autograder", "release", "week01", "lab01", "--to", str(tmp_path / "one.zip"))
    assert done.returncode == 0, done.stdout
    paths = write_student_copy(ROOT, tmp_path / "two.zip", ["week01", "lab01"])
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == [f"{TOP}/{path}" for path in paths] == sorted(archive.namelist())
    content = [path for path in paths if path.startswith(("weeks", "labs", "quizzes"))]
    week = "weeks/week01_why_one_gpu_is_not_enough.ipynb"
    assert content == ["labs/lab01/lab01.ipynb", "quizzes/week01.toml", week]


def test_what_was_written_into_a_released_lab_stays_here(tmp_path):
    """As when an instructor has solved it, to try it."""
    released = make_course(tmp_path) / "labs" / NAME / f"{NAME}.ipynb"
    before = released.read_bytes()
    released.write_text(released.read_text().replace("raise NotImplementedError", "return 42"))
    released.with_name("notes.txt").write_text("the answer")
    assert dict(student_copy._notebooks(tmp_path, [])) == {f"labs/{NAME}/{NAME}.ipynb": before}


def test_the_project_of_students_is_worldsize_with_what_it_needs(files):
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())
    theirs = tomllib.loads(files["pyproject.toml"].decode())
    assert theirs["project"]["dependencies"] == ours["project"]["dependencies"]
    assert theirs["project"]["name"] == "worldsize" and "optional-dependencies" not in theirs["project"]
    assert set(theirs["project"]["license-files"]) <= files.keys() and theirs["project"]["readme"] in files
    assert "worldsize/data/digits.csv.gz" in files and "worldsize/__init__.py" in files
