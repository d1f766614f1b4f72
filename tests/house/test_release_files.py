"""What a forge reads beside the code: the citation is of this version, and workflows call make targets that exist."""

import re
import tomllib

import pytest
import yaml
from repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = {*re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)}


def test_the_citation_is_of_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what its schema requires
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_targets_that_exist(path):
    (job,) = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    called = job["strategy"]["matrix"]["target"]
    assert set(called) <= TARGETS and len(called) > 4
    commands = [step["run"] for step in job["steps"] if "make " in step.get("run", "")]
    assert len(commands) == 1 and commands[0].endswith("${{ matrix.target }}")


def test_the_nightly_workflow_runs_every_part_of_make_nightly():
    parts = re.search(r"^nightly: (.+?)  ##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))
    assert parts and nightly["jobs"]["target"]["strategy"]["matrix"]["target"] == parts[1].split()
