"""Every link of README and docs/ leads to a file that is there, and to a cell, question or heading in it."""

import json
import re

import pytest
from repository import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(path):
    """What a link into a file may name after `#`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return {cell["id"] for cell in json.loads(text)["cells"]}
    if path.suffix == ".toml":
        return set(re.findall(r'^id = "(.+)"$', text, re.M))
    if path.suffix == ".py":
        return set(re.findall(r"^(?:def|class) (\w+)", text, re.M))
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_a_link_leads_somewhere(page):
    found = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    dead = []
    for name, anchor in found:
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            dead.append(f"{name}#{anchor}" if anchor else name)
    assert not dead


def test_every_row_of_what_the_course_covers_has_a_link():
    rows = [line for line in (ROOT / "docs/requirements.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row != "| what | where |"]
    assert len(rows) > 60
    assert not [row for row in rows if not LINK.search(row)]


def test_every_week_lab_and_project_is_in_what_the_course_covers():
    covered = {path for path, _ in LINK.findall((ROOT / "docs/requirements.md").read_text())}
    labs = [path for path in ROOT.glob("labs/*/*.ipynb") if path.stem in (path.parent.name, "report")]
    weeks, banks = [*ROOT.glob("weeks/week*.ipynb")], [ROOT / "quizzes/exams.toml", ROOT / "quizzes/blueprints.toml"]
    assert len(weeks) == 15 and len(labs) > 14
    due = {f"../{path.relative_to(ROOT).as_posix()}" for path in [*weeks, *labs, *banks]}
    assert sorted(due - covered) == []


def test_the_versions_of_tools_are_those_that_are_tested():
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    rows = re.findall(
        r"^\| ([\w, -]+?)(?:, \*optional\*)? \| ([\d., ]+) \|", (ROOT / "docs/reading.md").read_text(), re.M
    )
    tools = [
        pair for names, versions in rows for pair in zip(re.split(", | and ", names), versions.split(", "), strict=True)
    ]
    assert len(tools) > 15
    assert not [(name, version) for name, version in tools if pinned.get(name) != version]
