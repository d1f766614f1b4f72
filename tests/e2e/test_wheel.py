"""The distributions, built and installed apart from the repository: they hold every file, and the commands start.

What they need comes from this environment; tests/house/test_distributions.py checks that they declare it. The last
test installs all of it from a folder of wheels into an environment of its own, without an index.
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from repository import ROOT

from autograder.authoring.student_copy import student_files

pytestmark = pytest.mark.nightly("a minute")


WEEK = "week01_why_one_gpu_is_not_enough.ipynb"


def run(*command, cwd, timeout_s=280):
    """What a command printed; the test fails with that where the command fails."""
    ended = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with a wheel of `worldsize`, built from its sdist, and one of the autograder."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("worldsize", "autograder"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})", cwd=tree)
    (sdist,) = out.glob("worldsize-*.tar.gz")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    run(*wheel, sdist, cwd=out)
    run(*wheel, tree / "autograder", cwd=out)
    return out


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """The interpreter of an environment that has the wheels, and this one's packages after them."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / name / "site-packages"
    for wheel in built.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(packages)
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")  # read as a folder: no editable install
    return folder / "bin/python"


def test_every_file_of_the_packages_is_in_the_wheels(built):
    names = {name for wheel in built.glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()}
    paths = [
        path.relative_to(ROOT) for package in ("worldsize", "autograder") for path in (ROOT / package).rglob("*.*")
    ]
    left_out = {"__pycache__", "build", "pyproject.toml", "README.md"}
    due = {path.as_posix() for path in paths if not left_out & {*path.parts} and "egg-info" not in str(path)}
    for_readers = {name for name in due if name.endswith("/README.md") and "student_copy" not in name}
    assert len(due) > 300 and sorted(due - for_readers - names) == []
    assert len(for_readers) > 10 and sorted(for_readers & names) == []


def test_the_library_runs_from_the_wheel(python, tmp_path):
    where = run(python, "-c", "import worldsize; print(worldsize.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(python.parents[1])


def test_the_commands_start_from_the_wheel(python, tmp_path):
    assert "Usage" in run(python, "-m", "autograder", "--help", cwd=tmp_path)
    assert run(python, "-m", "autograder", "--version", cwd=tmp_path).strip() == version("worldsize")


@pytest.fixture(scope="module")
def wheelhouse(built):
    """A folder with the wheels of all that `worldsize` needs, from what pip is configured with; kept in build/."""
    folder = ROOT / "build/wheelhouse"
    (wheel,) = built.glob("worldsize-*.whl")
    download = [sys.executable, "-m", "pip", "download", "-q", "-c", ROOT / "constraints.txt", "-d", folder]
    run(*download, "--find-links", folder, "--only-binary", ":all:", wheel, cwd=built, timeout_s=900)
    return folder


@pytest.mark.timeout(2400)
def test_week_1_runs_from_the_wheels_alone(built, wheelhouse, tmp_path):
    venv.create(tmp_path / "environment", with_pip=True)
    alone = tmp_path / "environment/bin/python"
    options = ["-q", "--no-compile", "--no-index", "--find-links", wheelhouse, "-c", ROOT / "constraints.txt"]
    (wheel,) = built.glob("worldsize-*.whl")  # itself, because an older one may lie in the wheelhouse
    run(alone, "-m", "pip", "install", *options, wheel, cwd=tmp_path, timeout_s=900)
    for place, content in student_files(ROOT, ["week01"]).items():
        if place.startswith(("weeks/", "quizzes/")):
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).write_bytes(content)
    run(alone, "-m", "papermill", WEEK, "done.ipynb", cwd=tmp_path / "weeks", timeout_s=900)
    cells = nbformat.read(tmp_path / "weeks/done.ipynb", as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) > 10
    where = run(alone, "-c", "import worldsize; print(worldsize.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)


@pytest.mark.timeout(1800)
def test_pipx_runs_the_command_without_an_environment_of_its_own(built, tmp_path):
    venv.create(tmp_path / "pipx", with_pip=True)
    run(tmp_path / "pipx/bin/python", "-m", "pip", "install", "-q", "pipx", cwd=tmp_path)
    (wheel,) = built.glob("worldsize_autograder-*.whl")
    options = f"--pip-args=--find-links {built} -c {ROOT / 'constraints.txt'}"
    home = ["env", f"PIPX_HOME={tmp_path / 'home'}", "PIPX_DEFAULT_BACKEND=pip"]
    command = [*home, tmp_path / "pipx/bin/pipx", "run", options, "--spec", wheel, "autograder", "--version"]
    assert run(*command, cwd=tmp_path, timeout_s=1500).strip() == version("worldsize")
