"""A real Slurm of two nodes: it runs the generated array, requeues it, and leaves no process behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from needs import give_up
from processes import are_gone, wait_until
from repository import ROOT

from worldsize.course import slurm
from worldsize.course.manifests import Job, manifests

NUM_STEPS = 6
# DDP on two nodes, with a checkpoint after each step. On its first start it stops for ever at step 3.
TRAIN = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
saved = folder / "checkpoint.pt"
first = 0
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.module.load_state_dict(state["model"])
    first = state["step"]
print(f"rank {rank} of {dist.get_world_size()} on {os.environ['SLURMD_NODENAME']} from step {first}", flush=True)
for step in range(first, num_steps):
    if step == 3 and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        signal.signal(signal.SIGUSR1, lambda *_: (folder / f"warned{rank}").touch())
        (folder / f"waits{rank}").touch()
        time.sleep(600)
    model.zero_grad()
    torch.manual_seed(10 * step + rank)
    model(torch.randn(8, 4)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step + 1}, folder / "part.pt")
        os.replace(folder / "part.pt", saved)
dist.barrier()
os._exit(0)  # some versions of torch abort while the interpreter ends
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if lacking := slurm.missing():
        give_up("slurm", f"needs Debian's packages {' '.join(lacking)}")
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # torchrun
        patch.setenv("OMP_NUM_THREADS", "1")
        with slurm.SlurmCluster(folder) as running:
            yield running


def weights_of_one_process() -> torch.Tensor:
    """What the same training gives in one process that nobody interrupts."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    for step in range(NUM_STEPS):
        model.zero_grad()
        for rank in range(2):
            torch.manual_seed(10 * step + rank)
            (model(torch.randn(8, 4)).square().mean() / 2).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return model.weight.detach()


def test_the_generated_array_survives_a_requeue_and_loses_no_step(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = ("train.py", str(tmp_path), str(NUM_STEPS))
    job = Job("train", "none", command, num_nodes=2, gpus_per_node=0, time_limit_s=600)
    (tmp_path / "train.sbatch").write_text(manifests(job)["slurm.sbatch"])
    number = cluster.submit(tmp_path / "train.sbatch")
    log = tmp_path / "train-0.log"
    has_stopped = wait_until(lambda: len([*tmp_path.glob("waits?")]) == 2, within_s=200)
    assert has_stopped, log.read_text() if log.exists() else cluster.queue(number)

    # what --signal sends before the time is up; torchrun must not end by it
    cluster.run("scancel", "--signal=USR1", f"{number}_0")
    assert wait_until(lambda: len([*tmp_path.glob("warned?")]) == 2, within_s=30), log.read_text()
    assert any("RUNNING" in line for line in cluster.queue(number)), log.read_text()

    cluster.run("scontrol", "requeue", f"{number}_0")
    cluster.wait(number, within_s=200)

    text = log.read_text()
    assert "run 0, restart 0, on n[1-2]" in text and "run 0, restart 1, on n[1-2]" in text, text
    for rank in range(2):
        assert (
            f"rank {rank} of 2 on n{rank + 1} from step 3" in text
            or f"rank {rank} of 2 on n{2 - rank} from step 3" in text
        )
    assert "DUE TO JOB REQUEUE" in text and text.index("from step 0") < text.index("from step 3")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["step"] == NUM_STEPS
    torch.testing.assert_close(state["model"]["weight"], weights_of_one_process())


def generated(folder: Path, torchrun: str) -> Path:
    """A generated script for two nodes, and in the place of torchrun another program, in bash."""
    program = folder / "program"
    program.write_text(f"#!/bin/bash\n{torchrun}\n")
    program.chmod(0o755)
    script = folder / "short.sbatch"
    job = Job("short", "none", ("train.py",), num_nodes=2, gpus_per_node=0, max_restarts=1, time_limit_s=600)
    script.write_text(manifests(job)["slurm.sbatch"].replace("torchrun \\", "./program \\"))
    return script


def test_the_generated_script_gets_all_cores_of_its_nodes(tmp_path: Path) -> None:
    if lacking := slurm.missing():
        give_up("slurm", f"needs Debian's packages {' '.join(lacking)}")
    script = generated(tmp_path, 'echo "$SLURM_CPUS_ON_NODE cores on $SLURMD_NODENAME"')
    with slurm.SlurmCluster(tmp_path / "large", num_nodes=2, cores_per_node=4) as large:
        number = large.submit(script)
        large.wait(number)
        asked = large.run("scontrol", "show", "job", f"{number}_0")
    log = (tmp_path / "short-0.log").read_text()
    assert "4 cores on n1" in log and "4 cores on n2" in log, log
    assert "NumCPUs=8" in asked and "OverSubscribe=NO" in asked and "MinMemoryNode=0" in asked, asked


def test_the_warning_of_the_end_does_not_end_torchrun(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    number = cluster.submit(generated(tmp_path, "kill -USR1 $$\necho goes on"))
    cluster.wait(number)
    assert (tmp_path / "short-0.log").read_text().count("goes on") == 2
    assert not (tmp_path / "short-1.log").exists(), "the chain ends when a run has ended well"


def test_a_run_that_fails_is_followed_by_the_next_of_the_chain(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    job = Job("fails", "none", ("-c", "raise SystemExit(1)"), 1, 0, max_restarts=1, time_limit_s=600)
    text = manifests(job)["slurm.sbatch"]
    (tmp_path / "fails.sbatch").write_text(text.replace("torchrun \\", "false \\"))  # fails at once
    number = cluster.submit(tmp_path / "fails.sbatch")
    cluster.wait(number)
    assert all("run" in (tmp_path / f"fails-{run}.log").read_text() for run in range(2))


def test_a_script_for_gpus_runs_after_what_the_page_says(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    (command,) = re.findall(r"^```sh\n(sed .*?)^```$", (ROOT / "docs/schedulers.md").read_text(), re.M | re.S)
    job = Job("small", "none", ("train.py",), 4, 8, topology="example.org/rack", queue="elsewhere", time_limit_s=600)
    text = manifests(job)["slurm.sbatch"]
    (tmp_path / "slurm.sbatch").write_text(text.replace("torchrun \\", "echo \\"))
    subprocess.run(["bash", "-e", "-c", command], cwd=tmp_path, check=True)
    number = cluster.submit(tmp_path / "small.sbatch")
    cluster.wait(number)
    assert (tmp_path / "small-0.log").read_text().count("--nproc-per-node=1") == 2
    plain = manifests(replace(job, num_nodes=2, gpus_per_node=0, topology=""))["slurm.sbatch"]
    assert _options((tmp_path / "small.sbatch").read_text()) == _options(plain) - {"#SBATCH --partition=elsewhere"}


def _options(text: str) -> set[str]:
    return {line for line in text.splitlines() if line.startswith("#SBATCH")}


def test_slurm_refuses_what_the_check_refuses(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "wrong.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --job-name=a\n#SBATCH --nodes=2\n#SBATCH --time=10\n#SBATCH --requeues\ntrue\n"
    )
    with pytest.raises(RuntimeError, match=r"sbatch.*requeues"):
        cluster.submit(script)


def test_a_job_that_does_not_end_is_named(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "long.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --output=/dev/null\nsleep 600\n")
    number = cluster.submit(script)
    assert wait_until(lambda: any("RUNNING" in line for line in cluster.queue(number)), within_s=30)
    with pytest.raises(TimeoutError, match=rf"job {number} is not done after 0.1 s: {number} RUNNING n1"):
        cluster.wait(number, within_s=0.1)
    cluster.run("scancel", str(number))
    cluster.wait(number)


def test_nothing_is_left_of_a_cluster_with_a_running_job(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    with slurm.SlurmCluster(tmp_path / "other", num_nodes=1) as other:
        script = tmp_path / "stays.sbatch"
        script.write_text("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --output=/dev/null\necho $$ > pid\nsleep 600\n")
        other.submit(script)
        assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", within_s=30)
        started = [process.pid for process in psutil.Process().children(recursive=True)]
        pids = [int((tmp_path / "pid").read_text()), *(process.pid for process in other._started)]
        assert set(pids[1:]) <= set(started)
    assert are_gone(pids)
    assert "UP" in cluster.run("scontrol", "ping"), "another cluster on this machine goes on"


def test_the_daemons_end_with_a_kernel_that_is_killed(cluster: slurm.SlurmCluster, tmp_path: Path) -> None:
    program = f"""
import os, signal
from worldsize.course import slurm
started = slurm.SlurmCluster({str(tmp_path)!r}, num_nodes=1).__enter__()._started
print(*(process.pid for process in started), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3 and are_gone(pids)


def test_without_slurm_the_error_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(slurm, "find", lambda program: "" if program == "slurmd" else "there")
    assert slurm.missing() == ["slurmd"]
    with pytest.raises(RuntimeError, match="apt-get install slurmd"):
        slurm.SlurmCluster(tmp_path)


def test_a_daemon_that_does_not_start_says_why(tmp_path: Path, monkeypatch) -> None:
    if lacking := slurm.missing():
        give_up("slurm", f"needs Debian's packages {' '.join(lacking)}")
    monkeypatch.setattr(slurm, "_CONFIG", slurm._CONFIG + "Nonsense=1\n")
    monkeypatch.setattr(slurm, "_STARTS_WITHIN_S", 3)
    with pytest.raises(RuntimeError, match=r"slurmctld did not start: .*Nonsense"), slurm.SlurmCluster(tmp_path):
        pass
