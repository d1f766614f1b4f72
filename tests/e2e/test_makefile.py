"""What `make` says on a machine that lacks something, and that its targets are the ones the README names."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from repository import ROOT


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "autograder").mkdir()
    shutil.copy(ROOT / "autograder/pyproject.toml", tmp_path / "autograder")
    return tmp_path


def make(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "MAKE"))}
    return subprocess.run(
        ["make", *words], cwd=folder, env={**kept, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def test_without_network_it_says_so_before_it_installs(bare: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = make(bare, "setup", f"PYTHON={sys.executable}", "UV=", **nowhere)
    assert done.returncode != 0
    assert "No package can be had here. Without network: connect" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ERROR: No matching distribution found for setuptools")
    assert "Installing" not in done.stdout and not (bare / ".venv/.complete").exists()


def test_an_installation_that_fails_says_what_may_be_missing(bare: Path, tmp_path_factory) -> None:
    wheels = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(wheels / "setuptools-99-py3-none-any.whl", "w") as wheel:
        wheel.writestr("setuptools-99.dist-info/METADATA", "Metadata-Version: 2.1\nName: setuptools\nVersion: 99\n")
        wheel.writestr("setuptools-99.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("setuptools-99.dist-info/RECORD", "")
    alone = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    done = make(bare, "setup", f"PYTHON={sys.executable}", "UV=", **alone)
    assert done.returncode != 0
    assert "Installing into .venv" in done.stdout and "compiler" in done.stdout
    assert not (bare / ".venv/.complete").exists()


def test_old_python_is_refused_in_one_line(bare: Path) -> None:
    old = bare / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
    old.chmod(0o755)
    done = make(bare, "setup", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed; found Python 3.9.2" in done.stdout
    assert not (bare / ".venv").exists()


def test_every_target_is_listed_and_the_readme_names_only_those(bare: Path) -> None:
    listed = set(re.findall(r"make (\w+)", make(bare).stdout))
    assert {"setup", "demo", "lab", "test", "lint", "notebooks", "bench", "check"} <= listed
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named <= listed and {"demo", "test", "lab"} <= named
