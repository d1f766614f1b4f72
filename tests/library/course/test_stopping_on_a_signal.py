"""The program of docs/schedulers.md that saves when Slurm or Kubernetes ends its run, under a real torchrun."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import psutil
import pytest
from repository import ROOT

BLOCK = re.compile(r"^```python stops\.py\n(.*?)^```$", re.M | re.S)


@pytest.mark.slow
def test_every_rank_saves_the_same_step_and_the_next_run_goes_on_from_it(tmp_path):
    (tmp_path / "stops.py").write_text(BLOCK.search((ROOT / "docs/schedulers.md").read_text())[1])
    kubernetes = started_at(tmp_path, lambda torchrun, ranks: os.kill(torchrun, signal.SIGTERM))
    slurm = started_at(tmp_path, lambda torchrun, ranks: [os.kill(rank, signal.SIGUSR1) for rank in ranks[:1]])
    again = started_at(tmp_path, lambda torchrun, ranks: [os.kill(rank, signal.SIGUSR1) for rank in ranks])
    assert 0 == kubernetes[0] < slurm[0] < again[0]
    assert kubernetes[1] == slurm[1] == again[1] == 1


def started_at(folder: Path, then) -> tuple[int, int]:
    """The step from which a run trains, and its exit status after `then` was called with its processes."""
    command = [
        Path(sys.executable).with_name("torchrun"),
        "--standalone",
        "--nproc-per-node",
        "2",
        "stops.py",
        "1000000",
    ]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as torchrun:
        assert torchrun.stdout
        watch = Timer(120, end, [torchrun.pid])  # a rank that waits for ever would keep the pipe open
        watch.start()
        first = next(int(line.split()[-1]) for line in torchrun.stdout if line.startswith("training from step"))
        children = psutil.Process(torchrun.pid).children()
        then(torchrun.pid, [child.pid for child in children if "stops.py" in child.cmdline()])
        torchrun.stdout.read()
        watch.cancel()
    return first, torchrun.returncode


def end(pid: int) -> None:
    """Kill a process and all that it started."""
    torchrun = psutil.Process(pid)
    for process in [*torchrun.children(recursive=True), torchrun]:
        process.kill()
