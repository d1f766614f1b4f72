"""Runs launched from a real kernel: what appears and when, how much, and what is left when the kernel goes."""

import subprocess
import sys

import psutil
import pytest
from kernels import kernel
from processes import STAY, are_gone, told_pids

from worldsize.launch.display.output import KEPT_OUTPUT

# each rank starts a process of its own, which is to end with it
STAYS = f"""
import worldsize as ws
{STAY}
def on_rank(folder):
    import subprocess, sys, torch.distributed as dist
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (__import__("pathlib").Path(folder) / f"child{{dist.get_rank()}}").write_text(str(child.pid))
    stay(folder, dist.get_rank())
"""


@pytest.fixture
def notebook(tmp_path):
    """A kernel for one notebook."""
    with kernel(tmp_path) as one:
        yield one


def test_a_line_appears_while_its_rank_still_runs(notebook, tmp_path):
    code = """
import time, pathlib, worldsize as ws
def on_rank(gate):
    print("before the gate")
    while not pathlib.Path(gate).exists():
        time.sleep(0.01)
    print("behind the gate")
ws.run(on_rank, {gate!r}, world_size=1)
"""
    cell = notebook.start(code.format(gate=str(tmp_path / "gate")))
    notebook.wait(cell, lambda: "[rank 0] before the gate\n" in cell.text)
    assert not cell.is_done and "behind" not in cell.text
    (tmp_path / "gate").touch()
    notebook.wait(cell, lambda: cell.is_done)
    assert "[rank 0] behind the gate\n" in cell.text


def test_of_a_hundred_megabytes_little_is_sent_and_the_end_is_kept(notebook):
    code = f"""
import psutil, worldsize as ws
ws.run(print, world_size=1, echo=False)
before = psutil.Process().memory_info().rss
def on_rank():
    for number in range(1_000_000):
        print(f"{{number:099d}}")
run = ws.run(on_rank, world_size=1)
assert len(run.output[0]) == {KEPT_OUTPUT}
print("grown by", psutil.Process().memory_info().rss - before)
"""
    cell = notebook.run(code)
    assert cell.error == ""
    sent, _, grown = cell.text.partition("grown by ")
    assert len(sent) < 300_000
    assert "from here on, only the end" in sent and sent.endswith(f"[rank 0] {999_999:099d}\n")
    assert int(grown) < 50 << 20


@pytest.mark.parametrize("way", ["interrupt", "restart", "kill"])
def test_nothing_outlives_a_kernel_that_is_interrupted_restarted_or_killed(notebook, tmp_path, way):
    notebook.run(STAYS)
    cell = notebook.start(f"ws.run(on_rank, {str(tmp_path)!r}, world_size=2)")
    pids = told_pids(tmp_path, 2) | {int(path.read_text()) for path in tmp_path.glob("child*")}
    assert len(pids) == 5, "two ranks, their forkserver, and what each rank started"
    if way == "interrupt":
        notebook.manager.interrupt_kernel()
        notebook.wait(cell, lambda: cell.is_done)
        assert "KeyboardInterrupt" in cell.error
        pids -= {pid for pid in pids if pid in [one.pid for one in notebook.process.children()]}  # the forkserver stays
        assert len(pids) == 4
    elif way == "restart":
        notebook.manager.restart_kernel(now=True)
    else:
        notebook.process.kill()
    assert are_gone(pids)


def test_two_notebooks_launch_at_once(notebook, tmp_path):
    code = """
import torch, torch.distributed as dist, worldsize as ws
def on_rank():
    total = torch.ones(1000)
    dist.all_reduce(total)
    return total.sum().item()
print([ws.run(on_rank, world_size=2, echo=False).values for _ in range(10)] == [[2000.0, 2000.0]] * 10)
"""
    with kernel(tmp_path) as other:
        cells = [(one, one.start(code)) for one in (notebook, other)]
        for one, cell in cells:
            one.wait(cell, lambda cell=cell: cell.is_done)
        assert [(cell.text, cell.error) for _, cell in cells] == [("True\n", "")] * 2


def test_what_starts_ranks_is_started_by_the_import_alone(notebook):
    told = notebook.run("import psutil, worldsize as ws; print(*[one.pid for one in psutil.Process().children()])")
    assert told.error == ""
    (early,) = told.text.split()
    of_the_run = notebook.run("print(*ws.run(__import__('os').getppid, world_size=2, echo=False).values)")
    assert of_the_run.text.split() == [early, early]


def test_a_script_starts_nothing_before_it_runs_ranks():
    code = "import psutil, worldsize; print(len(psutil.Process().children()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


def test_a_kernel_that_ends_right_after_the_import_leaves_nothing(notebook):
    notebook.run("import worldsize")
    started = notebook.process.children()
    assert len(started) == 1
    notebook.close()
    psutil.wait_procs(started, timeout=30)
    assert not [one for one in started if one.is_running()]


def test_a_click_on_stop_is_heard_while_the_front_end_has_no_second_thread_in_the_kernel(notebook):
    code = """
import os, signal
os.environ["WORLDSIZE_VIEW"] = "live"
import worldsize as ws
ws.run(signal.pause, world_size=1, timeout_s=80)
"""
    cell = notebook.start(code)

    def comm_ids() -> list[str]:
        """The comms of the buttons that the cell has opened."""
        opened = [message["content"] for message in cell.of("comm_open")]
        return [one["comm_id"] for one in opened if one["data"]["state"]["_model_name"] == "ButtonModel"]

    notebook.wait(cell, lambda: cell.of("display_data"))  # nobody can click before
    click = {"comm_id": comm_ids()[0], "data": {"method": "custom", "content": {"event": "click"}}}
    notebook.client.shell_channel.send(notebook.client.session.msg("comm_msg", click))
    notebook.wait(cell, lambda: cell.is_done, within_s=40)
    assert "RunStopped" in cell.error and "Stopped by the stop button." in cell.error
