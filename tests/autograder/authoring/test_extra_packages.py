"""Packages that a lab's head names: they reach the released notebook, and are looked for before anything is judged."""

import sys

import pytest
from commands import run
from tiny_class import CONFIG, hand_in
from tiny_lab import LAB, NAME, make_course, needs_jail, release
from typer.testing import CliRunner

from autograder.authoring.extra_packages import needs_of, refuse_absent
from autograder.cli import app

ABSENT = "no_such_framework"
HEAD = f"# A lab on a framework.\n# needs: torch.distributed, {ABSENT}\n"


@pytest.fixture
def course(tmp_path):
    root = make_course(tmp_path / "course", lab=HEAD + LAB)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(CONFIG)
    hand_in(root, "ada")
    return root


def test_the_released_notebook_names_what_the_lab_needs(course, tmp_path):
    assert needs_of(release(course)) == ["torch.distributed", ABSENT]
    assert needs_of(release(make_course(tmp_path / "other"))) == []


def test_installed_modules_are_found_without_being_imported():
    refuse_absent(["torch.distributed.rpc", "xml.dom.pulldom", "json"], "lab12")
    assert "xml.dom.pulldom" not in sys.modules


@pytest.mark.parametrize("absent", [ABSENT, f"{ABSENT}.train", "torch.no_such_part", "json.decoder.inner"])
def test_an_absent_module_is_named_with_what_to_do(absent):
    with pytest.raises(ValueError, match=rf"lab12 needs {absent}, which is not installed here: install"):
        refuse_absent(["torch", absent], "lab12")


def test_grade_says_so_before_anything_is_judged(course, monkeypatch):
    monkeypatch.chdir(course)
    done = CliRunner().invoke(app, ["grade", NAME])
    assert done.exit_code == 1 and f"{NAME} needs {ABSENT}" in " ".join(done.output.split())
    assert not (course / "build" / "judged").exists()


@needs_jail
def test_nbgraders_own_command_says_so_and_gives_nobody_a_zero(course):
    run(course, "nbgrader", "generate_assignment", NAME, "--force")
    done = run(course, "nbgrader", "autograde", NAME)
    assert done.returncode and f"{NAME} needs {ABSENT}, which is not installed here" in done.stdout
    assert not (course / "build" / "judged").exists() and not (course / "autograded" / "ada" / NAME).exists()


def test_verify_says_so_too(course, monkeypatch):
    monkeypatch.chdir(course)
    done = CliRunner().invoke(app, ["verify", NAME])
    assert done.exit_code == 1 and f"{NAME} needs {ABSENT}" in " ".join(done.output.split())
