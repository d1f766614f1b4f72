"""Students install worldsize alone, instructors worldsize-autograder too: both import only what they declare."""

import ast
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distributions, metadata, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from repository import ROOT

STUDENT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTRUCTOR = tomllib.loads((ROOT / "autograder/pyproject.toml").read_text())["project"]
CORE, EXTRAS = STUDENT["dependencies"], STUDENT["optional-dependencies"]
DECLARED = {
    "worldsize": CORE + EXTRAS["week13"],
    # weeks 7, 8, 11 and 13 do without these where they are absent, and three modules have another name than theirs;
    # week 13's programs import files that it writes, and Horovod, which frameworks/build_horovod.sh installs
    "weeks": CORE
    + [
        one
        for name in ("deepspeed", "fairscale", "hta", "megatron", "mpi", "ray", "tensorflow", "torchft")
        for one in EXTRAS[name]
    ]
    + ["horovod", "hta", "megatron", "notes", "small", "survivor", "tensorflow", "training"],
    "solutions": CORE + EXTRAS["instructor"] + EXTRAS["ray"],  # hidden checks are the instructor's; lab 13a names Ray
    "autograder": CORE + EXTRAS["instructor"] + EXTRAS["ray"] + EXTRAS["hub"] + EXTRAS["lti"],
    # its own modules import each other by their folder
    "website": CORE + EXTRAS["instructor"] + EXTRAS["site"] + ["calculators", "extensions"],
}
OURS = {"worldsize", "autograder"}


def installed_by(requirements: Iterable[str]) -> set[str]:
    """The distributions that these requirements bring, theirs included."""
    found: set[str] = set()
    waiting = [(Requirement(one), "") for one in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in found or (marker and not marker.evaluate({"extra": extra})):
            continue
        found.add(name)
        try:
            inner = requires(name) or []
        except PackageNotFoundError:  # extras such as Ray are not part of `dev`
            continue
        waiting += [(Requirement(one), extra) for one in inner for extra in requirement.extras | {""}]
    return found


def imported(path: Path) -> set[str]:
    """The top-level modules that a file imports, anywhere in it."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - OURS


def undeclared(folder: Path, requirements: Iterable[str]) -> list[str]:
    """Imports of what the requirements do not bring."""
    brought, places = installed_by(requirements), packages_distributions()
    return [
        f"{path.relative_to(folder)} imports {name}"
        for path in sorted(folder.rglob("*.py"))
        for name in sorted(imported(path) - {inner.stem for inner in path.parent.glob("*.py")})
        if brought.isdisjoint(canonicalize_name(one) for one in places.get(name, [name]))
    ]


@pytest.mark.parametrize("folder", DECLARED)
def test_everything_imported_is_declared(folder: str) -> None:
    assert undeclared(ROOT / folder, DECLARED[folder]) == []


@pytest.mark.parametrize("line", ["import typst", "def f():\n    from scipy import stats", "import nh3", "import ray"])
def test_a_library_that_imports_what_only_instructors_install_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "units.py").write_text(line)
    assert len(undeclared(tmp_path, CORE)) == 1


def refusing(python: str, names: Iterable[str]) -> list[str]:
    """Those of these installed distributions that this version of Python may not install."""
    asked = {name: metadata(name).get("Requires-Python") for name in names}
    return [
        f"{name} wants Python {needs}" for name, needs in asked.items() if needs and python not in SpecifierSet(needs)
    ]


def test_every_pinned_version_installs_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2, which a pin of `>=3.11.5` would stop."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    installed = {canonicalize_name(one.name) for one in distributions()}
    pinned = [name for name in (line.partition("==")[0] for line in lines) if canonicalize_name(name) in installed]
    assert STUDENT["requires-python"] == ">=3.11" and len(pinned) > 100
    assert refusing("3.11.0", pinned) == []
    assert refusing("3.6", ["numpy"]) == [f"numpy wants Python {metadata('numpy')['Requires-Python']}"]


def test_both_distributions_have_one_version() -> None:
    assert INSTRUCTOR["version"] == STUDENT["version"]
    assert INSTRUCTOR["dependencies"] == [f"worldsize[instructor]=={STUDENT['version']}"]
