"""An open check of a lab needs no other, so that a student can run any of them first."""

import pytest
from executed import names_of
from repository import ROOT

from autograder.authoring.notebooks import find_sources
from autograder.authoring.scripts import Cell, parse

LABS = [path for path in find_sources(ROOT).labs if path.stem.startswith("lab")]


def needed_of_others(cells: list[Cell]) -> dict[str, set[str]]:
    """For each check, or cell outside the checks, the names that it reads and that only another check makes."""
    names = {cell.title: names_of(cell.source) for cell in cells if cell.kind == "code"}
    checks = {title for title in names if title.startswith("check_")}
    given = set().union(*(made for title, (_, made) in names.items() if title not in checks))
    found = {}
    for title, (read, _) in names.items():
        of_others = set().union(*(names[one][1] for one in checks if one != title)) - given
        if needed := read & of_others:
            found[title] = needed
    return found


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_an_open_check_needs_no_other(lab):
    assert needed_of_others(parse(lab).cells) == {}


def test_what_only_another_check_makes_is_found(tmp_path):
    path = tmp_path / "lab99.py"
    path.write_text(
        "# %% given\nimport math\n\n# %% check_first\nfrom statistics import mean\n\nhalf = math.pi / 2\n\n"
        "# %% check_second\ndef whole():\n    half = 1\n    return mean([half])\n\n\nprint(whole(), math.pi)\n"
    )
    assert needed_of_others(parse(path).cells) == {"check_second": {"mean"}}
