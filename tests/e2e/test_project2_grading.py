"""Project 2's contract, and two of its known answers, judged; all of them are judged by `make project`."""

import ast
import itertools
import re
from typing import Any

import nbformat
import pytest
import torch
from repository import ROOT

import worldsize as ws
from autograder.authoring import programs
from autograder.grading import verify
from worldsize.bench import TextTask

FOLDER = ROOT / "solutions" / "project2"
PROGRAM = programs.solved(FOLDER / "train.py")
CELLS = {cell.id: cell for cell in nbformat.read(FOLDER / "report.ipynb", as_version=4).cells}
CASES = {case.name: case for case in verify.cases(ROOT, "project2")}


def test_it_has_100_points_and_short_cells():
    points = {name: cell.metadata.nbgrader.points for name, cell in CELLS.items() if cell.metadata.nbgrader.grade}
    assert sum(points.values()) == 100 and points["words"] == 12
    code = {name: cell.source for name, cell in CELLS.items() if cell.cell_type == "code"}
    assert {name: n for name, source in code.items() if (n := source.count("\n") + 1) > 25} == {}
    table = next(cell.source for cell in CELLS.values() if "The order of work" in cell.source)
    named = {name: int(n) for name, n in re.findall(r"`(check_\w+)`[^|]*\| (\d+) \|", table)}
    assert named == {name: n for name, n in points.items() if name != "words"}


def test_the_contract_in_the_notebook_is_that_of_the_program():
    flags = [
        node.args[0].value
        for node in ast.walk(ast.parse(PROGRAM))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    contract = next(cell.source for cell in CELLS.values() if "The contract" in cell.source)
    assert set(re.findall(r"`(--[a-z0-9-]+)`", contract)) == set(flags) and len(flags) == 13


def test_the_released_program_can_be_read_and_fails_only_where_it_is_to_be_written():
    module: dict[str, Any] = {"__name__": "released"}
    exec(compile(programs.released(FOLDER / "train.py"), "train.py", "exec"), module)
    with pytest.raises(NotImplementedError, match="your own code"):
        module["my_plan"](4)
    assert module["Trainer"].__init__ is not object.__init__ and "DTensor" not in module


def test_the_bank_has_four_right_answers_and_ten_that_are_wrong_or_cheat():
    wrong = [name for name in CASES if name.startswith("wrong/")]
    assert len([name for name in CASES if name.startswith("right/")]) == 3  # beside the solution
    assert len(wrong) >= 10 and sum("cheat" in name for name in wrong) >= 2


def steps_of(path, flags):
    import runpy
    import sys

    parts, sys.argv[1:] = runpy.run_path(path), flags
    flags = parts["read_flags"]()
    trainer = parts["Trainer"](flags)
    tokens = torch.zeros(trainer.sequences[1] - trainer.sequences[0], flags.length, dtype=torch.long)
    for _ in range(2):
        trainer.step(tokens, tokens)


@pytest.mark.slow
@pytest.mark.nightly("a minute and a half")
@pytest.mark.timeout(1800)
def test_the_best_plan_is_the_fastest_of_those_that_fit(tmp_path):
    checks = (FOLDER / "checks.py").read_text()
    task = TextTask(num_steps=2, batch_size=256, length=4096, model_name="llama-3-70b", layers=8)
    fitting = []
    for tp, num_pieces in itertools.product((1, 2, 4, 8), (1, 2, 4)):
        if task.batch_size // (64 // tp) < num_pieces:
            continue
        path, old = tmp_path / f"{tp}-{num_pieces}.py", CASES["solution"].cells["my_plan"]
        plan = {"dp": 64 // tp, "tp": tp, "micro_batches": num_pieces}
        assert old in PROGRAM
        path.write_text(PROGRAM.replace(old, f"def my_plan(world_size):\n    return {plan}\n"))
        options = {"world_size": 64, "cluster": "h100-ndr-x8", "echo": False}
        run = ws.paper(steps_of, str(path), [*task.flags, "--bf16"], **options)
        if run.peak_bytes <= run.cluster.gpu.memory_bytes:
            fitting.append(run.step_s)
    assert f"BEST_STEP_S = {min(fitting):.3f} " in checks


# speed is virtual time here, so what else the machine does costs nobody points
@pytest.mark.slow
@pytest.mark.nightly("minutes; `make project` judges it with all other answers")
def test_the_solution_gets_its_score():
    finding = verify.try_case(ROOT, CASES["solution"], seed=0)
    assert finding.problems == [], finding.describe()
