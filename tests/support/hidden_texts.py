"""Texts that students must not see: solutions, lines of hidden checks and known answers, unpublished questions."""

import ast
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from repository import ROOT

from autograder.authoring.known_answers import KINDS, read_known_answers
from autograder.authoring.programs import authored
from autograder.authoring.scripts import Cell, parse, split_solution
from autograder.course import notebook_of

LONG = 40  # characters: a shorter line is anybody's
SHORT = 12  # of a formula
ANYBODYS = {
    "folder.mkdir(parents=True, exist_ok=True)",
    "picture: Callable[[], Drawn] | None = None,",
    "rank, size = dist.get_rank(), dist.get_world_size()",
}


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
    """The part of a cell that students get, and the part that they do not; an answer in prose is all hidden."""
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
        answers = [path.read_text(encoding="utf-8") for kind in KINDS for path in lab.glob(f"{kind}/*.*")]
        answers += [source for answer in read_known_answers(lab) for source in answer.cells.values()]  # hunks applied
        for text in ((lab / "checks.py").read_text(encoding="utf-8"), *answers):
            found |= long_lines(text)
    taught = (ROOT / "weeks/week14_capstone.py").read_text(encoding="utf-8")  # project 3 and the report start from it
    open_text += "\n".join(line for line in _of_the_capstone() if line in taught)
    return {line for line in found - ANYBODYS if line not in open_text and not line.startswith(("from ", "import "))}


def _of_the_capstone() -> set[str]:
    paths = [path for name in ("project3", "report") for path in (ROOT / "solutions" / name).glob("**/*.py")]
    return {line for path in paths if path.name != "checks.py" for line in long_lines(path.read_text(encoding="utf-8"))}


@cache
def hidden_of_the_bank() -> set[str]:
    """Ids, texts, answers and formulas of every question that no lesson asks."""
    questions = [
        question
        for file in sorted((ROOT / "quizzes").glob("*.toml"))
        for question in tomllib.loads(file.read_text(encoding="utf-8")).get("question", [])
    ]
    shown = "\n".join(text for one in questions if one["pool"] == "self-check" for text in values(one))
    hidden = {one["id"] for one in questions if one["pool"] != "self-check"}
    for one in questions:
        if one["pool"] != "self-check":
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
