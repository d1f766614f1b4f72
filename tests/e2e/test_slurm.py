"""The script for Slurm: that bash reads it, and what it does when it is told that its time is up."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from processes import are_gone, wait_until
from tiny_lab import ROOT

SCRIPT = ROOT / "slurm" / "project1.sbatch"
BENCH = """\
#!/bin/bash
echo "$$ $@" > {folder}/started.part
mv {folder}/started.part {folder}/started
[ -e {folder}/ends ] && exit 3
exec sleep 300
"""


@pytest.fixture
def course(tmp_path):
    """A folder with a virtual environment whose autograder only notes how it is called."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    for name, text in {
        "autograder": BENCH.format(folder=tmp_path),
        "scontrol": f'#!/bin/bash\necho "$@" > {tmp_path}/requeued\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def submit(course: Path, *words: str) -> subprocess.Popen:
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(course), "SLURM_JOB_ID": "4711"}
    return subprocess.Popen(["bash", SCRIPT, *words], env=env, cwd="/", stdout=subprocess.PIPE, text=True)


def started(course: Path) -> tuple[int, str]:
    assert wait_until((course / "started").exists, within_s=30)
    pid, _, words = (course / "started").read_text().strip().partition(" ")
    return int(pid), words


def test_bash_reads_it_and_its_lines_for_slurm_stand_before_the_first_command():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    head = SCRIPT.read_text().partition("\nset -u")[0]
    asked = [line.split()[1] for line in head.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=1", "--gpus-per-node=4", "--exclusive", "--requeue", "--signal=B:USR1@120"} <= set(asked)
    assert SCRIPT.read_text().count("#SBATCH") == len(asked), "Slurm reads none after the first command"


@pytest.mark.parametrize(("number", "code", "is_requeued"), [(signal.SIGUSR1, 0, True), (signal.SIGTERM, 143, False)])
def test_a_signal_ends_the_batch_and_only_the_end_of_time_requeues_it(course, number, code, is_requeued):
    job = submit(course, "submitted", "--repeats", "5")
    pid, words = started(course)
    assert words == "bench project1 --submissions submitted --repeats 5"
    job.send_signal(number)
    job.communicate(timeout=30)
    assert job.returncode == code and are_gone([pid])
    assert (course / "requeued").exists() is is_requeued
    if is_requeued:
        assert (course / "requeued").read_text() == "requeue 4711\n"


def test_it_ends_as_the_batch_does(course):
    (course / "ends").touch()
    job = submit(course, "submitted")
    job.communicate(timeout=30)
    assert job.returncode == 3


def test_without_submissions_it_says_what_is_missing(course):
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, cwd=course)
    assert done.returncode != 0 and "the folder of submissions" in done.stderr
