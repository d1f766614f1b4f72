"""The report of project 1 as papermill runs it, on a result file and on a program; what its open checks tell."""

import ast
import re

import nbformat
import papermill
import pytest
from executed import errors, stream
from nbclient import NotebookClient
from repository import ROOT

from autograder.authoring import programs
from autograder.grading import verify
from autograder.judging.report import Outcome
from worldsize import bench
from worldsize.bench import Task

pytestmark = pytest.mark.slow

FOLDER = ROOT / "solutions" / "project1"
PROGRAM = programs.solved(FOLDER / "train.py")
EXPERIMENTS = ("my_samples", "replica", "main", "fast", "accounting", "recovery")
CELLS = {cell.id: cell for cell in nbformat.read(FOLDER / "report.ipynb", as_version=4).cells}


def executed(folder, **parameters):
    """The outputs of every code cell by id, after papermill has run the whole report in a folder."""
    path = str(FOLDER / "report.ipynb")
    done = papermill.execute_notebook(path, None, parameters, cwd=str(folder), progress_bar=False, log_output=False)
    return {cell.id: cell.outputs for cell in done.cells if cell.cell_type == "code"}


def told(outputs):
    """A cell's pictures in words."""
    shown = [output.data for output in outputs if output.output_type == "display_data"]
    return [data["text/plain"] for data in shown if "image/png" in data]


def warnings(cells):
    """What cells wrote to stderr, for which nbgrader would give them no points."""
    streams = [one for outputs in cells.values() for one in outputs if one.output_type == "stream"]
    return [one.text for one in streams if one.name == "stderr"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A small measurement of the solution."""
    path = tmp_path_factory.mktemp("measured") / "train.py"
    path.write_text(PROGRAM)
    task = Task(num_steps=6, batch_size=32)
    return bench.measure(bench.ScriptHere(path), bench.sha256_of(path), task, [1, 2], num_repeats=1, num_warmup_steps=2)


@pytest.fixture(scope="module")
def drawn(result, tmp_path_factory):
    """The report on a result file, beside a program that must not be started."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "train.py").write_text("from pathlib import Path\nPath(__file__).with_name('started').touch()\n")
    failed = result.timings[-1].model_copy(
        update={"world_size": 4, "failure": "Rank 3 of 4 was killed.", "busy_cores": 999.0}
    )
    with_failure = result.model_copy(update={"timings": [*result.timings, failed]})
    (folder / "result.json").write_text(with_failure.model_dump_json())
    return folder, executed(folder, results="result.json")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The report beside the solution."""
    folder = tmp_path_factory.mktemp("measured_here")
    (folder / "train.py").write_text(PROGRAM)
    return executed(folder, world_sizes=[1, 2], num_repeats=1)


def test_a_result_file_is_drawn_and_no_program_started(drawn, result):
    folder, cells = drawn
    assert warnings(cells) == [] and not (folder / "started").exists()
    for check in EXPERIMENTS:
        assert "starts no program" in stream(cells[f"check_{check}"])
    said = stream(cells["measure_or_read"])
    assert "real, 4 ranks: Rank 3 of 4 was killed." in said
    assert "other work kept up to 999.0 cores busy" in said and "measure again on an idle machine" in said
    (curve,) = told(cells["scaling_curve"])
    assert curve.startswith("Speed-up with 32 samples in all: 2 ranks") and "weak" not in curve
    rows = [line for line in stream(cells["table_of_points"]).splitlines() if line.startswith(("strong", "weak"))]
    assert len(rows) == len(result.points) == 3
    for row, point in zip(rows, result.points, strict=True):
        assert row.startswith(f"{point.scaling}, {point.world_size} {point.kind}")
        assert f"{point.samples_per_s_per_rank:,.0f}" in row and f"{point.efficiency:.0%}" in row


@pytest.mark.nightly("two minutes, and its checks are judged elsewhere")
def test_every_experiment_runs_and_shows_what_it_says(measured):
    assert warnings(measured) == []
    pictures = {name: told(outputs) for name, outputs in measured.items() if told(outputs)}
    starts = {
        "check_main": "Line chart (Loss of the global batch, on 2 ranks here)",
        "check_fast": "Timeline (On 4 ranks, emulated)",
        "scaling_curve": "Speed-up with 128 samples in all: 2 ranks",
        "profiled_step": "Timeline (One step on 2 real ranks, by torch.profiler; measured here)",
        "bucket_sweep": "Line chart (Time of a step on 4 ranks over the best one, emulated)",
        "recovery_timeline": "Timeline (Rank 1 is killed at step 12; 2 steps are done again; measured here)",
    }
    assert pictures.keys() == starts.keys()
    (progress,) = (one.data for one in measured["measure_or_read"] if one.output_type == "display_data")
    assert re.fullmatch(r"(\d+) of \1 timings are done", progress["text/plain"])
    for name, start in starts.items():
        assert [words.startswith(start) for words in pictures[name]] == [True], pictures[name]
    assert "went on at step 10" in stream(measured["check_recovery"])
    assert "2 steps done again" in stream(measured["recovery_timeline"])
    seen = stream(measured["profiled_step"])
    under_s, without_s = (
        re.search(rf"{how}: ([\d.]+) ms a step", seen) for how in ("under the profiler", "without it")
    )
    assert under_s and without_s and "by the difference to --no-sync" in seen
    assert 0 < float(re.search(r"busy for (\d+)%", seen).group(1)) <= 100


@pytest.mark.nightly("two minutes, and its checks are judged elsewhere")
def test_flags_change_how_a_step_is_computed_and_only_amp_what_it_gives(measured):
    heading, *rows = stream(measured["faster_arithmetic"]).splitlines()
    off = {row[:16].strip(): float(row.split()[-1]) for row in rows}
    assert "2 real ranks, width 16" in heading and off.keys() >= {"as it is", "--channels-last", "--amp"}
    assert off["as it is"] < 1e-5 and off["--channels-last"] < 1e-5 and 2e-4 < off["--amp"] < 0.1


@pytest.mark.nightly("two minutes, and its checks are judged elsewhere")
def test_the_numbers_in_the_text_are_what_the_cells_print(measured):
    assert "7.19 ms a step, of which 14%" in stream(measured["check_fast"])
    assert "takes 7.2 ms for this step" in CELLS["check_main-markdown-1"].source
    two, four = stream(measured["check_accounting"]).splitlines()[1:]
    assert two.split() == ["2", "309,736", "309,740", "309,736"]
    assert four.split() == ["4", "464,604", "464,610", "464,604"]
    eight = stream(measured["communication_share"]).splitlines()[-1].split()
    assert eight == ["8", "6.91", "ms", "54%", "54%", "78%", "31%"]
    classroom, pcie = (line.split() for line in stream(measured["bucket_sweep"]).splitlines()[1:])
    assert classroom[1::2] == ["7.10", "7.19", "7.24", "8.44", "10.5", "24.1"]
    assert pcie[1:11:2] == ["435", "348", "315", "315", "327"]


def wrong(old, new):
    """The solution with one mistake in it."""
    assert PROGRAM.count(old) == 1, old
    return PROGRAM.replace(old, new)


WRONG = {
    "lost_samples": (
        "check_my_samples",
        wrong(
            "return rank * batch // world_size, (rank + 1) * batch // world_size",
            "return rank * (batch // world_size), (rank + 1) * (batch // world_size)",
        ),
        "sample 45 comes 0 times",
    ),
    "all_the_rest_at_the_end": (
        "check_my_samples",
        wrong(
            "return rank * batch // world_size, (rank + 1) * batch // world_size",
            "size = batch // world_size - 1\n"
            "    return rank * size, batch if rank == world_size - 1 else (rank + 1) * size",
        ),
        "shares of [14, 14, 18]",
    ),
    "no_momentum": ("check_replica", wrong(", momentum=flags.momentum", ""), "SGD with"),
    "sum": (
        "check_replica",
        wrong("total * self.world_size / self.batch", "total * 4 / self.batch"),
        "Twice the",
    ),
    "always_the_same_batch": (
        "check_main",
        wrong("samples.take(step, *share)", "samples.take(0, *share)"),
        "samples of step 1 were never taken",
    ),
    "steps_from_1": ("check_main", wrong('{"step": step,', '{"step": step + 1,'), "each of 10 steps, in order"),
    "mean_of_means": (
        "check_replica",
        wrong(
            "total * self.world_size / self.batch if self.is_synchronised else total / len(labels)",
            "total / len(labels)",
        ),
        "mean of three means",
    ),
    "own_loss": (
        "check_replica",
        wrong("waiting = dist.all_reduce(loss, async_op=True) if self.is_synchronised else None", "waiting = None"),
        "not only over this rank's",
    ),
    "one_bucket": ("check_fast", wrong("bucket_cap_mb=bucket_mb", "bucket_cap_mb=25"), "while backward still computes"),
    "whole_size": (
        "check_accounting",
        wrong("self.sent_bytes = share * gradient_bytes", "self.sent_bytes = gradient_bytes"),
        "each rank sends 2(N - 1)/N",
    ),
    "syncs_without_leave": (
        "check_accounting",
        wrong("not flags.no_sync and self.world_size > 1", "self.world_size > 1"),
        "Neither gradients nor losses may travel",
    ),
}
BEFORE = ("parameters", "setup", "trying_out", "steps_of_a_replica", "expect_replicas", "one_emulated_step")
RESUMED_AT_0 = """
takes = [bench.Take(rank, step, 0, 1, 0.1 * n) for n, step in enumerate([*range(13), 0]) for rank in (0, 1)]
struck.time_s = 1.25
attempt = lambda spec, **options: bench.Trial(bench.TrainingResult(), bench.TrainingRecord(takes), None)
here(recovery)
"""


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """The outputs of an open check by the name of the mistake that it met."""
    folder = tmp_path_factory.mktemp("mistaken")
    cells = [CELLS[name] for name in BEFORE]
    for name, (check, source, _) in WRONG.items():
        (folder / f"{name}.py").write_text(source)
        cells.append(nbformat.v4.new_code_cell(f"program = '{name}.py'\n{CELLS[check].source}", id=name))
    cells.append(
        nbformat.v4.new_code_cell(CELLS["check_recovery"].source.rpartition("\n")[0] + RESUMED_AT_0, id="anew")
    )
    notebook = nbformat.v4.new_notebook(cells=[*cells])
    NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell.id: cell.outputs for cell in notebook.cells}


@pytest.mark.parametrize("name", [*WRONG, "anew"])
def test_open_check_tells_the_cause(mistaken, name):
    (error,) = errors(mistaken[name])
    hint = "it went on at step 0" if name == "anew" else WRONG[name][2]
    assert error.ename == "CheckFailed" and hint in "\n".join(error.traceback)


def test_it_has_100_points_and_short_cells():
    points = {name: cell.metadata.nbgrader.points for name, cell in CELLS.items() if cell.metadata.nbgrader.grade}
    assert sum(points.values()) == 100 and points["words"] == 12
    code = {name: cell.source for name, cell in CELLS.items() if cell.cell_type == "code"}
    assert {name: n for name, source in code.items() if (n := source.count("\n") + 1) > 25} == {}


def test_the_contract_in_the_notebook_is_that_of_the_program():
    tree = ast.parse(PROGRAM)
    flags = [
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    contract = next(cell.source for cell in CELLS.values() if "The contract" in cell.source)
    assert set(re.findall(r"`(--[a-z-]+)`", contract)) == set(flags) and len(flags) == 16


@pytest.mark.nightly("four minutes; `make project` judges it, and CI its mistaken ones")
@pytest.mark.timeout(600)
def test_no_hidden_check_breaks_on_the_reference():
    # its points are for `make project`: speed counts there, and other tests run beside this one
    finding = verify.try_case(ROOT, verify.solution_of(ROOT, "project1"), seed=0)
    assert [check.message for check in finding.report.checks if check.outcome is Outcome.FAULT] == []
