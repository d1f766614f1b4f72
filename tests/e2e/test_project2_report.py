"""The report of project 2 beside the solution, as papermill runs it; the figures in its text are those of its cells."""

import re

import nbformat
import papermill
import pytest
from executed import stream
from repository import ROOT

from autograder.authoring import programs

pytestmark = [pytest.mark.slow, pytest.mark.nightly("a minute, and its checks are judged elsewhere")]

FOLDER = ROOT / "solutions" / "project2"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The outputs of every code cell by id."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "train.py").write_text(programs.solved(FOLDER / "train.py"))
    path = str(FOLDER / "report.ipynb")
    done = papermill.execute_notebook(path, None, cwd=str(folder), progress_bar=False, log_output=False)
    return {cell.id: cell.outputs for cell in done.cells if cell.cell_type == "code"}


@pytest.mark.timeout(900)
def test_every_check_holds_and_shows_what_it_says(measured):
    written = [one for outputs in measured.values() for one in outputs if one.output_type == "stream"]
    assert [one.text for one in written if one.name == "stderr"] == []
    assert stream(measured["check_trainer"]).count("weights and losses are those of one process") == 3
    assert "went on at step 8 on 2" in stream(measured["check_recovery"])
    assert "All six figures" in stream(measured["check_figures"])
    assert stream(measured["measured_here"]).count("measured here") == 3


def test_the_numbers_in_the_answer_are_what_the_cells_print(measured):
    cells = nbformat.read(FOLDER / "report.ipynb", as_version=4).cells
    words = next(cell.source for cell in cells if cell.id == "words")
    assert "REFERENCE_STEP_S = 0.03374 " in (FOLDER / "checks.py").read_text()
    assert "33.7 ms" in words and "emulated_step_s 0.03374" in stream(measured["check_fast"])
    large = stream(measured["check_large"])
    assert "1.84 s and 55.7 GiB" in words and "paper_step_s 1.842" in large
    peak_bytes = float(re.search(r"paper_peak_bytes ([\d.e+]+)", large).group(1))
    assert abs(peak_bytes / 2**30 - 55.7) < 0.1
