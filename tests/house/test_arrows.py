"""Arrows point down: worldsize knows nothing of the course, and no layer of a higher one; nobody runs in circles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LAYERS = [
    {"units", "files", "cores", "controls", "formulas", "event", "intervals", "palette", "source", "timeline"},
    {"audit", "memory", "images", "text", "models", "framing", "message", "outages", "published", "update"},
    {"hardware"},
    {"gpus"},
    {"emulate", "faults", "gloo", "operators", "pricing"},
    {"launch"},
    {"audit_command", "check", "comparing", "draw", "explain", "paper", "slow_steps"},
    {"explore", "bench", "quiz", "ledger", "pages", "planning"},
    {"__main__", "calibrate", "capstone", "course"},
]
# one level below these, a folder or a file is a part: at most so many parts, on so many floors of imports
HOUSES = {
    "autograder": (20, 8),
    "autograder.grading": (17, 6),
    "autograder.judging": (5, 3),
    "autograder.submissions": (12, 6),
    "worldsize.emulate": (3, 2),
    "worldsize.launch": (9, 6),
}
MAY_IMPORT = {
    "worldsize": {"worldsize"},
    "autograder": {"autograder", "worldsize"},
    "weeks": {"worldsize"},
    "solutions": {"worldsize"},
    "tests": {"autograder", "worldsize", "tests"},
}


def scripts(root: Path) -> dict[str, Path]:
    """The Python files of the course by module name."""
    files = (path for top in MAY_IMPORT for path in sorted((root / top).rglob("*.py")))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(module: str, path: Path, modules: set[str]) -> Iterator[str]:
    """Every module that `module` imports, for `from package import name` the deepest that exists."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield inner if inner in modules else source


def arrows_between_folders(root: Path) -> list[str]:
    """Imports from a folder that must not be known there; only hidden checks know the autograder."""
    modules, wrong = scripts(root), []
    for module, path in modules.items():
        top = module.split(".")[0]
        allowed = MAY_IMPORT[top] | ({"autograder"} if path.name == "checks.py" else set())
        wrong += [
            f"{path.relative_to(root)} imports {target}"
            for target in imports(module, path, set(modules))
            if target.split(".")[0] in MAY_IMPORT.keys() - allowed
        ]
    return wrong


def arrows_between_layers(root: Path) -> list[str]:
    """Imports inside worldsize from a higher layer, or of its facade, and modules that have no layer."""
    modules, wrong = scripts(root), []
    height = {name: level for level, layer in enumerate(LAYERS) for name in layer}
    for module, path in modules.items():
        top, _, inner = module.partition(".")
        if top != "worldsize" or not inner:
            continue
        name = inner.split(".")[0]
        if name not in height:
            wrong.append(f"{path.relative_to(root)} has no place in LAYERS of {Path(__file__).name}")
            continue
        for target in imports(module, path, set(modules)):
            source, _, inner_target = target.partition(".")
            if source == "worldsize" and height.get(inner_target.split(".")[0], len(LAYERS)) > height[name]:
                wrong.append(f"{path.relative_to(root)} imports {target}")
    return wrong


def circles(root: Path) -> list[str]:
    """One line for every circle of imports."""
    modules = scripts(root)
    return circles_of({name: set(imports(name, path, set(modules))) & set(modules) for name, path in modules.items()})


def circles_of(graph: dict[str, set[str]]) -> list[str]:
    found, done = [], set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in sorted(graph[name]):
                visit(target, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def parts(root: Path, house: str) -> dict[str, set[str]]:
    """The parts of a house by name, each with those that it imports, also inside functions."""
    modules, graph = scripts(root), {}
    for module, path in modules.items():
        if module.startswith(f"{house}."):
            targets = (target for target in imports(module, path, set(modules)) if target.startswith(f"{house}."))
            graph.setdefault(part_of(module, house), set()).update(part_of(target, house) for target in targets)
    return {part: (targets & graph.keys()) - {part} for part, targets in graph.items()}


def part_of(module: str, house: str) -> str:
    return module.removeprefix(f"{house}.").split(".")[0]


def circles_between_parts(root: Path) -> list[str]:
    """One line for every circle between the parts of a house, though no two modules need import each other."""
    return [f"{house}: {circle}" for house in HOUSES for circle in circles_of(parts(root, house))]


def crowded_houses(root: Path) -> list[str]:
    """One line for every house with too many parts, or with too long a chain of imports between them."""
    wrong = []
    for house, (max_parts, max_floors) in HOUSES.items():
        graph = parts(root, house)
        if len(graph) > max_parts:
            wrong.append(f"{house} has {len(graph)} parts; at most {max_parts}")
        if (num_floors := longest_chain(graph)) > max_floors:
            wrong.append(f"{house} has {num_floors} floors; at most {max_floors}")
    return wrong


def longest_chain(graph: dict[str, set[str]]) -> int:
    """How many floors a house has: a part stands one floor above the highest that it imports."""
    floors: dict[str, int] = {}

    def floor(part: str) -> int:
        if part not in floors:
            floors[part] = 0  # in a circle, which is another rule's to report
            floors[part] = 1 + max((floor(target) for target in graph[part]), default=0)
        return floors[part]

    return max((floor(part) for part in graph), default=0)


RULES = [arrows_between_folders, arrows_between_layers, circles, circles_between_parts, crowded_houses]
PLANTED = [
    ("worldsize/units.py", "import autograder.build", arrows_between_folders),
    ("worldsize/units.py", "def f():\n    from solutions.lab01 import lab01", arrows_between_folders),
    ("autograder/build.py", "from weeks import week01", arrows_between_folders),
    ("autograder/build.py", "import solutions.lab01.checks", arrows_between_folders),
    ("weeks/week01_why.py", "import autograder", arrows_between_folders),
    ("solutions/lab01/lab01.py", "from autograder.checks import points", arrows_between_folders),
    ("worldsize/units.py", "from worldsize.launch import run", arrows_between_layers),
    ("worldsize/launch/rank.py", "from worldsize import draw", arrows_between_layers),
    ("worldsize/launch/rank.py", "from ..draw import timeline", arrows_between_layers),
    ("worldsize/launch/rank.py", "import worldsize as ws", arrows_between_layers),
    ("worldsize/launch/rank.py", "from worldsize import run", arrows_between_layers),
    ("worldsize/novelty.py", "", arrows_between_layers),
    ("worldsize/check.py", "from worldsize import draw", circles),
    ("worldsize/launch/rank.py", "def f():\n    from . import runner", circles),
    ("autograder/build.py", "from autograder.judging.report import Report", circles_between_parts),
    ("autograder/build.py", "def f():\n    from autograder.judging import report", circles_between_parts),
    ("worldsize/launch/reports/result.py", "def f():\n    from worldsize.launch import runner", circles_between_parts),
]


@pytest.fixture
def sound(tmp_path):
    """A small tree that breaks no rule."""
    files = {
        "worldsize/__init__.py": "from worldsize.launch import run\nfrom worldsize.check import expect_close",
        "worldsize/units.py": "import math",
        "worldsize/emulate/protocol/record.py": "",
        "worldsize/launch/__init__.py": "from worldsize.launch.runner import run",
        "worldsize/launch/rank.py": "from worldsize import units",
        "worldsize/launch/runner.py": "from . import rank\nfrom ..units import significant\nfrom .reports import text",
        "worldsize/launch/reports/text.py": "",
        "worldsize/launch/reports/result.py": "from worldsize.launch.reports import text",
        "worldsize/check.py": "from worldsize.launch import run",
        "worldsize/draw.py": "from worldsize import check",
        "autograder/build.py": "import worldsize as ws",
        "autograder/judging/judge/main.py": "import autograder.build",
        "autograder/judging/report.py": "",
        "autograder/grading/lab.py": "",
        "autograder/submissions/submission.py": "",
        "weeks/week01_why.py": "import worldsize as ws",
        "solutions/lab01/lab01.py": "from worldsize import run",
        "solutions/lab01/checks.py": "from autograder.checks import points",
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


@pytest.mark.parametrize(("name", "text", "rule"), PLANTED)
def test_a_planted_arrow_is_caught(sound, name, text, rule):
    (sound / name).write_text(text)
    assert len(rule(sound)) == 1


@pytest.mark.parametrize("house", HOUSES)
def test_a_part_too_many_is_caught(sound, house):
    for number in range(HOUSES[house][0]):
        (sound / house.replace(".", "/") / f"part{number}.py").write_text("")
    assert len(crowded_houses(sound)) == 1


@pytest.mark.parametrize("house", HOUSES)
@pytest.mark.parametrize("form", ["import {}", "def f():\n    import {}"])
def test_a_floor_too_many_is_caught(sound, house, form):
    for path in sorted((sound / house.replace(".", "/")).rglob("*.py")):
        path.unlink()  # leaves room for the parts of the chain
    num_floors = HOUSES[house][1] + 1
    for number in range(num_floors):
        text = form.format(f"{house}.part{number + 1}") if number + 1 < num_floors else ""
        (sound / house.replace(".", "/") / f"part{number}.py").write_text(text)
    assert len(crowded_houses(sound)) == 1
