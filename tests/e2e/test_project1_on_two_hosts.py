"""Project 1's solution by torchrun on two hosts of this machine: the losses of one host, and the emulator's step."""

import contextlib
import importlib.util
import itertools
import json
import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from launching import run
from needs import give_up
from netlab import Lab, unavailable_because
from netlab.compare import WORST_GOAL
from repository import ROOT

from worldsize import bench, emulate

PROGRAM = ROOT / "solutions" / "project1" / "train.py"
WORDS = ("--steps", "16", "--width", "16", "--batch", "32", "--timeout", "60")
WARM = 4  # steps: in the first, DDP has one bucket, and connections and caches are cold
PORT = 29500  # on a network that only these hosts are on


def trained_on_rank(path, words):
    """The loss of every step, and when it was over on this rank's clock."""
    sys.argv = [path, *words]
    spec = importlib.util.spec_from_file_location("train", path)
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    flags = train.read_flags()
    samples, replica = bench.open_samples(flags.batch, flags.seed, flags.images), train.Replica(flags)
    share, found = train.my_samples(flags.batch, dist.get_rank(), dist.get_world_size()), []
    for step in range(flags.steps):
        loss = replica.step(*samples.take(step, *share))
        found.append((loss, emulate.elapsed()))
    return found


def trained_by_torchrun(lab):
    """The same of the whole program, an agent on each host; the clock is that of its lines' arrival."""
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(started(host, number)) for number, host in enumerate(lab.hosts)]
        lines = agents[0].stdout or ()
        found = [(json.loads(line)["loss"], time.monotonic()) for line in lines if line.startswith("{")]
        errors = [agent.communicate(timeout=60)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(errors)
    return found


@contextlib.contextmanager
def started(host, number):
    """torchrun with one rank on this host; at the end it is over."""
    place = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}", "--master-addr=10.77.0.1"]
    words = [sys.executable, "-m", "torch.distributed.run", *place, f"--master-port={PORT}", str(PROGRAM), *WORDS]
    command = ["ip", "netns", "exec", host, "env", "GLOO_SOCKET_IFNAME=net0", "OMP_NUM_THREADS=1", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as agent:
        try:
            yield agent
        finally:
            agent.terminate()  # its ranks with it


def steps_s(found):
    """The seconds of a step after the first ones; the shortest, because noise only delays."""
    times_s = [time_s for _, time_s in found[WARM - 1 :]]
    return min(after_s - before_s for before_s, after_s in itertools.pairwise(times_s))


@pytest.mark.netlab
def test_two_hosts_train_as_one_does_and_as_long_as_the_emulator_says(capsys):
    if reason := unavailable_because():
        give_up("netlab", f"no network lab here: {reason}")
    with Lab([50] * 2) as lab:
        there = trained_by_torchrun(lab)
    args, options = (str(PROGRAM), WORDS), {"world_size": 2, "echo": False, "timeout_s": 120}
    here = run(trained_on_rank, *args, backend="gloo", **options).values[0]
    emulated = run(trained_on_rank, *args, cluster=lab.cluster, compute="measured", **options).values[0]
    with capsys.disabled():
        times = ", ".join(f"{where} {1e3 * steps_s(one):.1f} ms" for where, one in (
            ("on two hosts", there), ("emulated", emulated), ("on one host", here)))  # fmt: skip
        print(f"\nProject 1, 310 kB of gradients at 50 Mbit/s, a step: {times}")
    for found in (there, emulated):
        assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in here], rel=1e-4)
    assert there[-1][0] < 0.9 * there[0][0]
    assert steps_s(emulated) == pytest.approx(steps_s(there), rel=WORST_GOAL)
    assert steps_s(here) < 0.7 * steps_s(there)  # so it is the network that is compared
