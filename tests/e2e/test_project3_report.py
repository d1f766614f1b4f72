"""The report of project 3 beside the solution, as papermill runs it; its figures are what the text says."""

import papermill
import pytest
from executed import stream
from repository import ROOT

from autograder.authoring import programs

pytestmark = pytest.mark.slow

FOLDER = ROOT / "solutions" / "project3"


@pytest.mark.nightly("a minute, and its checks are judged elsewhere")
def test_every_check_holds_and_shows_what_it_says(tmp_path):
    (tmp_path / "programs.py").write_text(programs.solved(FOLDER / "programs.py"))
    options = {"cwd": str(tmp_path), "progress_bar": False, "log_output": False}
    done = papermill.execute_notebook(str(FOLDER / "report.ipynb"), None, **options)
    found = {cell.id: cell.outputs for cell in done.cells if cell.cell_type == "code"}
    written = [one for outputs in found.values() for one in outputs if one.output_type == "stream"]
    assert [one.text for one in written if one.name == "stderr"] == []
    assert "half of the micro-batches: 0.5" in stream(found["check_cost"])
    assert "adds up" in stream(found["check_design"])
    assert stream(found["check_policy"]).count("a save an hour gives") == 2
    assert "differ from those of one process" in stream(found["check_train"])
