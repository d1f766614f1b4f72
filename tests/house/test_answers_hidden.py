"""No student finds an answer: not in labs/, and not among what worldsize can import."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT as REPOSITORY

from autograder.authoring.known_answers import solution_cells
from autograder.authoring.programs import authored
from autograder.authoring.scripts import parse, split_solution
from autograder.course import notebook_of

TELLING_LINE = 20
TELLING_BODY = 200
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lab_scripts(root: Path) -> list[Path]:
    """Every script that holds answers: of notebooks and of the programs beside them."""
    folders = sorted(path for path in root.glob("solutions/*") if path.is_dir())
    notebooks = [folder / f"{notebook_of(folder.name)}.py" for folder in folders]
    return [path for path in notebooks if path.exists()] + [path for folder in folders for path in authored(folder)]


def solution_text_in_labs(root: Path) -> list[str]:
    """The telling solution lines that stand in a file of labs/ and that their own lab does not give away."""
    released = {path: _text(path) for path in sorted(root.glob("labs/**/*")) if path.is_file()}
    found = []
    for script in lab_scripts(root):
        parts = [split_solution(cell.source) for cell in parse(script).cells]
        given = "\n".join(line for lines, _ in parts for line in lines)
        secret = {line.strip() for _, lines in parts for line in lines}
        telling = sorted(line for line in secret if len(line) >= TELLING_LINE and line not in given)
        found += [
            f"{path.relative_to(root)} has `{line}` of {script.name}"
            for path, text in released.items()
            for line in telling
            if line in text
        ]
    return found


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def answers_in_worldsize(root: Path) -> list[str]:
    """The functions and classes of worldsize that are named or written like an answer."""
    names, bodies = set(), {}
    for script in lab_scripts(root):
        for title, source in solution_cells(script).items():
            names |= {title} - {"main"}  # which every program has
            bodies |= {_shape(function): title for function in _functions(source)}
    found = []
    for path in sorted((root / "worldsize").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, Function | ast.ClassDef) and node.name in names:
                found.append(f"{path.relative_to(root)}:{node.lineno} {node.name} is named like an answer")
            elif isinstance(node, Function) and len(_shape(node)) >= TELLING_BODY and _shape(node) in bodies:
                found.append(f"{path.relative_to(root)}:{node.lineno} {node.name} is the answer {bodies[_shape(node)]}")
    return found


def _functions(source: str) -> Iterator[Function]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return  # an answer in words
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def _shape(function: Function) -> str:
    """The body with its docstring and annotations gone and its names numbered: what a renamed copy shares."""
    copy = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copy, Function)
    if ast.get_docstring(copy) is not None:
        copy.body = copy.body[1:]
    numbers: dict[str, str] = {}
    own = {arg.arg for arg in ast.walk(copy.args) if isinstance(arg, ast.arg)} | {
        node.id for node in ast.walk(copy) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(ast.Module(body=copy.body, type_ignores=[])):
        if isinstance(node, ast.Name) and node.id in own:
            node.id = numbers.setdefault(node.id, f"name{len(numbers)}")
    return "\n".join(ast.dump(statement) for statement in copy.body)


RULES = [solution_text_in_labs, answers_in_worldsize]
LAB = '''\
# %% average_gradients tags=["solution"]
def average_gradients(model):
    """Averages the gradients."""
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op="sum")
        parameter.grad /= dist.get_world_size()
    ### END SOLUTION

# %% check_average_gradients points=2
expected = dist.get_world_size()
'''
COPY = """\
def synchronise(module):
    for p in module.parameters():
        dist.all_reduce(p.grad, op="sum")
        p.grad /= dist.get_world_size()
"""


@pytest.fixture
def sound(tmp_path):
    """A small tree that gives no answer away."""
    released = [{"source": ["def average_gradients(model):\n", "    raise NotImplementedError"]}]
    files = {
        "solutions/lab01/lab01.py": LAB,
        "labs/lab01/lab01.ipynb": json.dumps({"cells": released}),
        "worldsize/launch.py": "def run(function):\n    return function()\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("rule", RULES)
def test_the_course_keeps_the_rule(rule):
    assert rule(REPOSITORY) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_tree_keeps_the_rule(sound, rule):
    assert rule(sound) == []


@pytest.mark.parametrize("name", ["lab01.ipynb", "hints.txt"])
def test_a_solution_line_in_labs_is_caught(sound, name):
    line = '        dist.all_reduce(parameter.grad, op="sum")'
    text = json.dumps({"cells": [{"source": [line]}]}) if name.endswith(".ipynb") else line
    (sound / "labs/lab01" / name).write_text(text)
    assert solution_text_in_labs(sound) == [f"labs/lab01/{name} has `{line.strip()}` of lab01.py"]


@pytest.mark.parametrize(
    "planted",
    [COPY, "def average_gradients(model): ...\n", "class average_gradients: ...\n"],
    ids=["renamed", "same name", "class"],
)
def test_an_answer_in_worldsize_is_caught(sound, planted):
    (sound / "worldsize/launch.py").write_text(planted)
    assert len(answers_in_worldsize(sound)) == 1
