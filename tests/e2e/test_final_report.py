"""The performance report: the shipped one runs, and each of its numbers is computed or cited; so is the template."""

import json

import nbformat
import pytest
from nbclient import NotebookClient
from repository import ROOT

from worldsize.course import reporting

SOLVED, RELEASED = (ROOT / folder / "report" / "report.ipynb" for folder in ("solutions", "labs"))


@pytest.mark.slow
def test_the_shipped_report_runs_and_every_number_is_computed_or_cited(tmp_path):
    notebook = nbformat.read(SOLVED, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    found = reporting.check(json.loads(nbformat.writes(notebook)))
    assert found.is_clean, str(found)
    assert found.num_computed >= 40 and found.num_cited >= 1


def test_the_template_gives_no_number_of_its_own():
    assert not reporting.check(reporting.read(RELEASED)).findings


def test_each_answer_stands_below_its_rubric_and_has_its_points():
    cells = nbformat.read(RELEASED, as_version=4).cells
    by_hand = [place for place, cell in enumerate(cells) if "points" in cell.metadata.get("nbgrader", {})]
    answers = [place for place in by_hand if cells[place].cell_type == "markdown"]
    assert [cells[place].id for place in answers] == [
        "the_question", "what_binds", "beyond_its_size", "recommendation", "cost_benefit", "the_sources",
    ]  # fmt: skip
    assert sum(cells[place].metadata.nbgrader.points for place in by_hand) == 27
    for place in by_hand:
        rubric = next(one.source for one in cells[place - 1 :: -1] if "Rubric" in one.source).partition("Rubric")[2]
        worth = sum(int(part.partition(")")[0]) for part in rubric.split("(")[1:] if part[0].isdigit())
        assert worth == cells[place].metadata.nbgrader.points, cells[place].id
