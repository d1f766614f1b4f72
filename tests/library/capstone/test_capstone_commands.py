"""Students check and run a design by their own programs; instructors by the judge's cost, and no program of others."""

import re
import shutil
import time

import pytest
from typer.testing import CliRunner

from autograder.cli import app
from worldsize import capstone
from worldsize.capstone.__main__ import main
from worldsize.capstone.programs import load_programs, record_step
from worldsize.capstone.report import DesignReport
from worldsize.planning import serial
from worldsize.units import format_time_s

GOOD = capstone.EXAMPLES / "ten_thousand_h100.toml"
PROGRAMS = """
import torch
import torch.distributed as dist


def step_s(plan):
    return {"compute_s": 8.0, "dp_s": 1.0}


def train(plan):
    layer = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(2):
        layer(torch.randn(512, 1024)).sum().backward()
        dist.all_reduce(layer.weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def policy(status):
    return 3600.0
"""


@pytest.fixture
def mine(tmp_path):
    """A student's copy of the example, with programs beside it."""
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.read_text() + '\n[programs]\nfile = "programs.py"\n')
    (tmp_path / "programs.py").write_text(PROGRAMS)
    return path


def test_a_student_checks_and_runs_a_design(mine, tmp_path, capsys):
    assert main(["check", str(mine)]) == 0
    assert capsys.readouterr().out == "388B on 10,000 H100: it adds up.\n"
    page = tmp_path / "page.html"
    assert main(["run", str(mine), "--to", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "9.00 s, 20.5M tokens" in printed and "gradients and weights that no work hides" in printed
    assert "your policy" in page.read_text()


def test_a_student_is_told_what_does_not_add_up(mine, capsys):
    mine.write_text(mine.read_text().replace("dp = 125", "dp = 100"))
    for command in ("check", "run"):
        assert main([command, str(mine)]) == 1
        assert "8,000 ranks, and 1,250 nodes have 10,000 GPUs" in capsys.readouterr().out


def test_the_days_of_check_are_those_of_the_policy(mine, capsys):
    mine.write_text(mine.read_text().replace("days = 90", "days = 44"))
    assert main(["check", str(mine)]) == 1
    assert "budget.days: it takes 46.5 days with saves and failures" in capsys.readouterr().out
    (mine.parent / "programs.py").write_text(PROGRAMS.replace("3600.0", "90.0"))
    assert main(["check", str(mine)]) == 0


def test_run_takes_the_serial_time_where_no_program_is_named(capsys):
    path = capstone.EXAMPLES / "llama_2_7b.toml"
    assert main(["run", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("No cost of a step is given: it is the serial time")
    design = capstone.load(path)
    step_s = serial.step_s(design.layout, "bfloat16")
    assert f"step {format_time_s(step_s)}, 4.19M tokens" in printed and "what a node sends" in printed
    # 184,320 GPU-hours on 512 GPUs: Touvron et al. 2023, arXiv 2307.09288, table 2
    low, high = re.search(r"at published steps ([\d.]+) to ([\d.]+) days", printed).groups()
    assert float(low) < 184_320 / 512 / 24 < float(high)
    assert main(["run", str(path), "--record"]) == 1
    assert "names no file with train(plan)" in capsys.readouterr().err


def test_run_asks_for_what_a_student_s_file_lacks(mine, capsys):
    (mine.parent / "programs.py").write_text("def policy(status):\n    return 3600.0\n")
    assert main(["run", str(mine)]) == 1
    assert "names no file with step_s(plan)" in capsys.readouterr().err
    (mine.parent / "programs.py").write_text("def step_s(plan):\n    return 9\n")
    assert main(["run", str(mine), "--record"]) == 1
    assert "names no file with train(plan)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("x = 1\n", "defines none of step_s, train and policy"),
        ("step_s = 3\n", "step_s is 3; it must be a function"),
        (None, "programs.py does not exist"),
    ],
)
def test_programs_that_are_not_there_are_named(mine, capsys, program, sentence):
    path = mine.parent / "programs.py"
    path.unlink() if program is None else path.write_text(program)
    assert main(["check", str(mine)]) == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "command", "sentences"),
    [
        (
            "def step_s(plan):\n    return 1 / 0\n",
            ["check"],
            ["ZeroDivisionError: division by zero", "programs.py, line 2, in step_s\n    return 1 / 0", "Correct"],
        ),
        (
            "def step_s(plan):\n    return 9\n\n\ndef policy(status):\n    return status.nodes\n",
            ["run"],
            ["AttributeError", "programs.py, line 6, in policy\n    return status.nodes"],
        ),
        ("def step_s(plan)\n", ["run"], ["SyntaxError: expected ':'", "programs.py, line 1\n    def step_s(plan)"]),
        ("import sys\n\nsys.exit(3)\n", ["check"], ["sys.exit(3)", "programs.py, line 3\n    sys.exit(3)"]),
        ("def step_s():\n    return 9\n", ["run"], ["step_s() takes 0 positional arguments", "programs.py\n"]),
        ("def train(plan):\n    return 1 / 0\n", ["run", "--record"], ["programs.py, line 2, in train"]),
        ("def step_s(plan):\n    return 1e999\n", ["run"], ["cost is inf s"]),
    ],
)
def test_an_error_of_a_program_is_a_sentence_with_its_line(mine, capsys, program, command, sentences):
    (mine.parent / "programs.py").write_text(program)
    assert main([*command, str(mine)]) == 1
    said = capsys.readouterr().err
    assert [sentence for sentence in sentences if sentence not in said] == [] and "Traceback" not in said


def test_a_recorded_step_is_shown_with_its_range(mine, capsys):
    main(["run", str(mine), "--record"])
    said = capsys.readouterr().out
    assert said.startswith("PaperRun(10,000 ranks on ") and "nothing like this was compared" in said


def test_a_recorded_step_is_priced_on_faster_links(mine):
    design = capstone.load(mine)
    programs = load_programs(design, mine.parent)
    cost = record_step(programs.train, design)
    begin_s = time.process_time()
    report = DesignReport.of(design, lambda plan: 10 + cost(plan))  # the program does not do the design's products
    assert time.process_time() - begin_s < 2 * 3  # 0.7 s where this was written; a busy machine counts more
    assert 10 < report.figures.step_s < 10.1
    resources = {gain.resource for gain in report.gains}
    assert "bandwidth of NICs and network" in resources
    assert not resources & {"GPUs", "GPU memory"}  # another plan has another record


def test_an_instructor_runs_designs_by_the_judges_cost(mine, tmp_path):
    (mine.parent / "programs.py").write_text("raise SystemExit(3)\n")  # is not run
    runner, page = CliRunner(), tmp_path / "page.html"
    checked = runner.invoke(app, ["capstone", "check", str(mine)])
    assert checked.exit_code == 0 and "it adds up." in checked.output
    ran = runner.invoke(app, ["capstone", "run", str(mine), "--to", str(page)])
    assert ran.exit_code == 0 and "69.0% of the time goes to kernels" in ran.output and "<img" in page.read_text()
    mine.write_text(mine.read_text().replace("days = 90", "days = 40"))
    checked = runner.invoke(app, ["capstone", "check", str(mine)])
    assert checked.exit_code == 1 and "budget.days: it takes 45.2 days with saves and failures" in checked.output
    mine.write_text(mine.read_text().replace("dp = 125", "dpp = 125"))
    ran = runner.invoke(app, ["capstone", "run", str(mine)])
    assert ran.exit_code == 1 and "plan.dpp: there is no such key" in ran.output


def test_an_instructor_compares_a_class(tmp_path):
    for student in ("ada", "bo", "cy"):
        (tmp_path / "class" / student).mkdir(parents=True)
        shutil.copy(GOOD, tmp_path / "class" / student / "design.toml")
    wrong = tmp_path / "class" / "cy" / "design.toml"
    wrong.write_text(wrong.read_text().replace("dp = 125", "dp = 100"))
    page = tmp_path / "designs.html"
    done = CliRunner().invoke(app, ["capstone", "compare", str(tmp_path / "class"), "--to", str(page)])
    assert done.exit_code == 0, done.output
    assert "cy: plan: dp 100" in done.output and "add up: 1." in done.output
    assert f"Designs in {page}: 2." in done.output
    assert "ada and 1 more" in page.read_text()


def test_absurd_numbers_of_one_student_stop_no_comparison_of_a_class(tmp_path):
    shutil.copy(GOOD, tmp_path / "ada.toml")
    absurd = capstone.EXAMPLES / "bloom_176b.toml"
    (tmp_path / "bo.toml").write_text(re.sub("nic_bytes_per_s = .*", "nic_bytes_per_s = 1e-308", absurd.read_text()))
    done = CliRunner().invoke(app, ["capstone", "compare", str(tmp_path), "--to", str(tmp_path / "designs.html")])
    assert done.exit_code == 0 and "bo: budget.days: it takes endless days even without a failure" in done.output


def test_designs_of_one_folder_are_both_compared(tmp_path):
    (tmp_path / "class" / "ada").mkdir(parents=True)
    for name in ("first", "second"):
        shutil.copy(GOOD, tmp_path / "class" / "ada" / f"{name}.toml")
    page = tmp_path / "designs.html"
    done = CliRunner().invoke(app, ["capstone", "compare", str(tmp_path / "class"), "--to", str(page)])
    assert done.exit_code == 0 and "Designs in" in done.output and ": 2. Designs" in done.output
    assert "ada/first and 1 more" in page.read_text()


def test_a_class_of_which_no_design_adds_up_learns_why(tmp_path):
    (tmp_path / "ada.toml").write_text(GOOD.read_text().replace("dp = 125", "dp = 100"))
    page = tmp_path / "designs.html"
    done = CliRunner().invoke(app, ["capstone", "compare", str(tmp_path), "--to", str(page)])
    assert done.exit_code == 1 and not page.exists()
    assert "ada: plan: dp 100" in done.output and "no design adds up" in done.output
