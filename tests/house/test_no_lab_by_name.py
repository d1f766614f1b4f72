"""The engine, the library and their configuration know no particular lab: a lab's own settings are in its lab.toml."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT as REPOSITORY

LAB = re.compile(r"\b(?:lab\d\d[ab]?|project\d|week\d\d)\b")
EXAMPLE = re.compile(rf"such as '?{LAB.pattern}(?: or {LAB.pattern})?")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def labs_by_name(root: Path) -> list[str]:
    """Each text in code, not an example in a help or a docstring, that names a lab, a project or a week."""
    scripts = [path for house in ("autograder", "worldsize") for path in sorted((root / house).rglob("*.py"))]
    lines = [
        (path, line, text)
        for path in (*scripts, root / "nbgrader_config.py")
        for line, text in _texts(ast.parse(path.read_text(encoding="utf-8")))
    ]
    makefile = root / "Makefile"
    lines += [(makefile, *line) for line in enumerate(makefile.read_text(encoding="utf-8").splitlines(), start=1)]
    return [
        f"{path.relative_to(root)}:{line} names {match[0]}"
        for path, line, text in lines
        for match in LAB.finditer(EXAMPLE.sub("", text))
    ]


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    documented = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node)]
    docstrings = [node.body[0].value for node in documented]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.lineno, node.value


@pytest.fixture
def sound(tmp_path):
    """A small tree that knows no lab."""
    files = {
        "autograder/course.py": '"""Reads lab01."""\nHELP = "Which lab, such as lab01 or project1."\n',
        "worldsize/units.py": "GIB = 1 << 30  # as in week01\n",
        "nbgrader_config.py": "c.Grade.call_s = 15\n",
        "Makefile": "lab:\n\tjupyter lab weeks/week01_why.ipynb\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_course_names_no_lab():
    assert labs_by_name(REPOSITORY) == []


def test_a_sound_tree_names_no_lab(sound):
    assert labs_by_name(sound) == []


@pytest.mark.parametrize(
    ("name", "text", "lab"),
    [
        ("autograder/course.py", "ALONE = name.startswith(('lab12', 'x'))", "lab12"),
        ("autograder/course.py", "HELP = f'{number} of project1'", "project1"),
        ("worldsize/units.py", "WEEK = 'week03'", "week03"),
        ("nbgrader_config.py", "c.Grade.call_s_of = {'lab13a': 900}", "lab13a"),
        ("Makefile", "\tautograder verify lab12", "lab12"),
    ],
)
def test_a_lab_that_is_named_is_caught(sound, name, text, lab):
    path = sound / name
    path.write_text(f"{path.read_text()}{text}\n")
    (problem,) = labs_by_name(sound)
    assert problem.startswith(f"{name}:") and problem.endswith(f" names {lab}")
