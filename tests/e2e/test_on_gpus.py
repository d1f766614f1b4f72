"""`make gpu`: without a GPU it says so; on processor cores it records the same parts, and calls that a stand-in."""

import json
import subprocess
import sys

import nbformat
import pytest
import torch
from repository import ROOT

from autograder.bench import recorded

sys.path.append(str(ROOT / "tests/bench"))

import gpu_parts
import on_gpus

SETTING = gpu_parts.Setting(2, "gloo")


def on_gpus_here(*words):
    command = [sys.executable, "tests/bench/on_gpus.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence_and_records_nothing():
    before = {*(ROOT / recorded.FOLDER).glob("*")}
    done = on_gpus_here()
    assert done.returncode == on_gpus.NO_GPU == 3
    assert done.stdout.startswith("No GPU: torch ") and done.stdout.count("\n") == 1
    assert {*(ROOT / recorded.FOLDER).glob("*")} == before


def test_a_part_that_is_not_there_is_refused():
    done = on_gpus_here("--stand-in", "week99")
    assert done.returncode == 2 and "there is no part week99" in done.stderr


def test_every_week_and_lab_is_a_part():
    names = {path.stem for path in (ROOT / "labs").iterdir() if path.name.startswith("lab")}
    weeks = {path.stem[:6] for path in (ROOT / "weeks").glob("week*.py")}
    assert set(gpu_parts.PARTS) == names | weeks | {"tests", "launcher", "project1", "calibration"}


def test_a_stand_in_is_recorded_as_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(on_gpus, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_parts, "SIZES_BYTES", (1024, 4096))
    monkeypatch.setattr(sys, "argv", ["on_gpus.py", "--stand-in", "launcher", "broken"])
    monkeypatch.setitem(on_gpus.PARTS, "broken", lambda setting: 1 / 0)
    assert on_gpus.main() == 1  # a part failed
    (path,) = tmp_path.glob("build/measured/cpu-stand-in-*.json")
    record = recorded.Record.model_validate_json(path.read_text())
    assert (record.is_stand_in, record.backend, record.num_ranks) == (True, "gloo", 2)
    launcher, broken = record.parts
    assert launcher.outcome == "passed" and launcher.data["backend"] == "gloo"
    assert [row["size_bytes"] for row in launcher.data["rows"]] == [1024, 4096]
    assert all(row["time_s"] > 0 for row in launcher.data["rows"])
    assert broken.outcome == "failed" and broken.why.endswith("ZeroDivisionError: division by zero\n")
    assert "stand-in" in capsys.readouterr().out


def test_a_week_gives_its_tables_of_what_was_measured(tmp_path):
    script = tmp_path / "week99_small.py"
    script.write_text("""# %% parameters tags=["parameters"]
world_size = 4

# %% sizes
from worldsize import draw

draw.table([{"ranks": world_size, "took_s": 0.25}], title="Ranks, measured here")

# %% formula
draw.table([{"ranks": 8}], title="Ranks, computed, not measured")
""")
    (table,) = gpu_parts.week(script, SETTING)["tables"]
    assert (table.cell, table.title, table.columns) == ("sizes", "Ranks, measured here", ["ranks", "took"])
    assert table.rows == [["2", "250 ms"]]


def test_a_cell_that_fails_is_the_failure_of_its_part(monkeypatch):
    lesson = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("raise ValueError('no rank')")])
    monkeypatch.setitem(gpu_parts.PARTS, "week99", lambda setting: gpu_parts._executed(lesson))
    part = on_gpus.run_part("week99", SETTING)
    assert part.outcome == "failed" and "no rank" in part.why and json.loads(part.model_dump_json())["tables"] == []
