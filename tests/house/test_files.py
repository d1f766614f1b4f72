"""Committed files have telling names, and say nothing of the machine that they were written on."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from repository import ROOT as REPOSITORY

BANNED_STEMS = {"utils", "util", "helpers", "helper", "common", "misc", "lib"}
NOT_COMMITTED = {
    ".git",
    ".venv",
    "build",
    "__pycache__",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
}
EVERYWHERE = {Path(f"/{name}") for name in ("", "home", "mnt", "opt", "root", "srv", "tmp", "usr", "var")}
HOME = re.compile(r"(?<![\w.:/~-])/(?:home|Users|root)/[\w.]")
REGISTRY = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|anaconda\.(?:org|com)|npmjs\.(?:org|com))|//[\w.:@-]+/\S*simple\b"
)


def committed(root: Path) -> list[Path]:
    """The files that git tracks or would track; without git, all that are not a by-product."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        paths = [root / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in root.rglob("*") if not NOT_COMMITTED & {*path.relative_to(root).parts}]
    return sorted(path for path in paths if path.is_file())


def banned_names(root: Path) -> list[str]:
    """The files and folders whose name says nothing of what is in them."""
    names = {part for path in committed(root) for part in path.relative_to(root).parts}
    return sorted(name for name in names if name.partition(".")[0].lower() in BANNED_STEMS)


def machine_traces(root: Path) -> list[str]:
    """The lines that name a folder of this machine, somebody's home, or a package registry."""
    folders = {root.resolve(), root.resolve().parent, Path(sys.prefix).resolve()} - EVERYWHERE
    machine = re.compile(rf"(?<![\w.:/~-])(?:{'|'.join(re.escape(str(folder)) for folder in folders)})(?![\w-])")
    found = []
    for path in committed(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.split("\n"), start=1):
            if HOME.search(line) or REGISTRY.search(line) or machine.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:80]}")
    return found


RULES = [banned_names, machine_traces]


@pytest.fixture
def sound(tmp_path):
    """A small tree that breaks no rule."""
    (tmp_path / "library.py").write_text("# /proc and home/of are fine; so is https://example.org/home/page\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build/notes.txt").write_text(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("rule", RULES)
def test_the_course_keeps_the_rule(rule):
    assert rule(REPOSITORY) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_tree_keeps_the_rule(sound, rule):
    assert rule(sound) == []


@pytest.mark.parametrize("name", ["utils.py", "Helpers.py", "common/faults.py", "misc.tar.gz", "lib/a.txt"])
def test_a_banned_name_is_caught(sound, name):
    (sound / name).parent.mkdir(exist_ok=True)
    (sound / name).touch()
    assert banned_names(sound) == [name.split("/")[0]]


@pytest.mark.parametrize("parts", [("/home", "ann", "course"), ("/Users", "ann"), ("/root", ".venv")])
def test_a_home_folder_is_caught(sound, parts):
    (sound / "library.py").write_text(f"\ncourse = '{'/'.join(parts)}'\n")
    assert [line.split(": ")[0] for line in machine_traces(sound)] == ["library.py:2"]


@pytest.mark.parametrize("folder", [".", ".."])
def test_the_folder_of_the_course_is_caught(sound, folder):
    (sound / "library.py").write_text(f"see {(sound / folder).resolve()}/weeks\n")
    assert len(machine_traces(sound)) == 1


@pytest.mark.parametrize(
    "host", [("files.pythonhosted", "org/packages"), ("pypi", "org"), ("mirror:8080/py/+simple", "")]
)
def test_a_package_registry_is_caught(sound, host):
    (sound / "library.py").write_text("https://" + ".".join(host))
    assert len(machine_traces(sound)) == 1


def same_names(paths: list[Path]) -> list[str]:
    """The names of test files that are given twice: pytest collects only the first."""
    names = Counter(path.name for path in paths if path.name.startswith("test_") and path.suffix == ".py")
    return sorted(name for name, count in names.items() if count > 1)


def test_no_two_test_files_have_one_name():
    assert same_names(committed(REPOSITORY / "tests")) == []
    assert same_names([Path("a/test_one.py"), Path("b/test_one.py"), Path("b/test_two.py")]) == ["test_one.py"]
