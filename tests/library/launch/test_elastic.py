"""Ranks under torchrun that come back: after a kill, with an agent less, with an agent more."""

import json
import socket
import subprocess
import sys

import psutil
import pytest
from processes import are_gone, wait_until

import worldsize as ws
from worldsize.launch.worker.agent import FORK_RANKS

NUM_STEPS = 6
# Trains one weight on four numbers that differ by step and are shared out among however many ranks there are. All are
# dyadic fractions, so that losses are exact at every world size. `gate` holds the number of steps allowed so far.
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist

folder, num_steps, kills = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def note(event, **fields):
    line = {"event": event, "rank": rank, "world_size": world_size, "restart": restart, "pid": os.getpid(),
            "agent": os.getppid(), "time_s": time.monotonic(), "step": state["step"], **fields}
    with open(folder / "log", "a") as file:
        file.write(json.dumps(line) + "\\n")

checkpoint = folder / "checkpoint.pt"
state = {"step": 0, "weight": 0.0, "velocity": 0.0}
if checkpoint.exists():
    state = torch.load(checkpoint)
note("start")
while state["step"] < num_steps:
    while state["step"] >= int((folder / "gate").read_text()):
        time.sleep(0.01)
    if [restart, rank, state["step"]] in kills:
        note("kill")
        os.kill(os.getpid(), signal.SIGKILL)
    errors = [state["weight"] - number - state["step"] for number in (1, 2, 4, 9)[rank::world_size]]
    sums = torch.tensor([sum(errors), sum(error * error for error in errors)], dtype=torch.float64)
    dist.all_reduce(sums)
    velocity = state["velocity"] / 2 + sums[0].item() / 2
    step = state["step"]
    state = {"step": step + 1, "weight": state["weight"] - velocity / 4, "velocity": velocity}
    if rank == 0:
        torch.save(state, folder / "checkpoint.tmp")
        os.replace(folder / "checkpoint.tmp", checkpoint)
    note("done", step=step, loss=sums[1].item() / 4, weight=state["weight"])
    dist.barrier()  # no rank may die before the step is saved and noted by all
"""


def undisturbed():
    """Each step's loss and the weight after it."""
    weight = velocity = 0.0
    steps = []
    for step in range(NUM_STEPS):
        errors = [weight - number - step for number in (1, 2, 4, 9)]
        velocity = velocity / 2 + sum(errors) / 2
        weight -= velocity / 4
        steps.append((sum(error * error for error in errors) / 4, weight))
    return steps


class Job:
    """A training script, its folder and what its ranks have noted there."""

    def __init__(self, folder):
        self._folder = folder
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.open_gate(NUM_STEPS)

    def args(self, kills=()):
        return [str(self.script), str(self._folder), str(NUM_STEPS), json.dumps(list(kills))]

    def open_gate(self, num_steps):
        path = self._folder / "gate.tmp"
        path.write_text(str(num_steps))
        path.rename(self._folder / "gate")

    def notes(self, event, **fields):
        """Those of an event with these fields."""
        path = self._folder / "log"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("\n")]
        return [note for note in notes if note["event"] == event and fields.items() <= note.items()]

    def steps(self):
        """(restart, rank, world size, step) of each step that was done, by step and rank."""
        done = [(note["restart"], note["rank"], note["world_size"], note["step"]) for note in self.notes("done")]
        return sorted(done, key=lambda step: (step[3], step[1]))

    def processes(self):
        """All that have the job's folder on their command line: launchers, agents and ranks, orphans too."""
        running = psutil.process_iter(["cmdline"])
        return [one for one in running if any(str(self._folder) in word for word in one.info["cmdline"] or [])]

    def assert_trained_as_if_undisturbed(self):
        expected = undisturbed()
        assert all((note["loss"], note["weight"]) == expected[note["step"]] for note in self.notes("done"))
        assert {note["step"] for note in self.notes("done")} == set(range(NUM_STEPS))


@pytest.fixture
def job(tmp_path):
    """A job of which nothing runs after the test."""
    job = Job(tmp_path)
    yield job
    assert wait_until(lambda: not job.processes(), 5), "a rank or an agent stayed behind"


@pytest.mark.parametrize("env", [{}, {FORK_RANKS: "1"}], ids=["started", "forked"])
@pytest.mark.parametrize("kills", [[(0, 1, 3)], [(0, 1, 2), (1, 0, 4)]])
def test_ranks_come_back_after_kills_and_go_on_from_the_checkpoint(job, kills, env):
    run = ws.torchrun(*job.args(kills), nproc_per_node=2, max_restarts=len(kills), echo=False, timeout_s=60, env=env)
    assert (run.restarts, run.states) == (len(kills), ["done", "done"])
    job.assert_trained_as_if_undisturbed()
    generation = [sum(step >= kill[2] for kill in kills) for step in range(NUM_STEPS)]
    assert job.steps() == [(generation[step], rank, 2, step) for step in range(NUM_STEPS) for rank in (0, 1)]
    assert [(kill["restart"], kill["rank"], kill["step"]) for kill in job.notes("kill")] == kills
    for kill in job.notes("kill"):
        first = job.notes("done", restart=kill["restart"] + 1)[0]
        assert first["time_s"] - kill["time_s"] < 30  # 2 s on an idle machine


def test_a_kill_when_no_restart_is_left_names_the_rank_of_that_kill(job):
    kills = [(0, 1, 2), (1, 0, 4)]
    with pytest.raises(ws.RankFailed, match=r"^Rank 0 of 2 failed with SIGKILL") as caught:
        ws.torchrun(*job.args(kills), nproc_per_node=2, max_restarts=1, echo=False, timeout_s=60)
    assert caught.value.failures[0].rank == 0
    assert job.steps() == [(int(step >= 2), rank, 2, step) for step in range(4) for rank in (0, 1)]


LAUNCHER = """
import json, sys
import worldsize as ws
from worldsize.launch.worker.agent import FORK_RANKS

args, flags = json.loads(sys.argv[1])
ws.torchrun(*args, **flags)
"""


@pytest.fixture
def start_agent(job, tmp_path):
    """A function that starts one of the job's two agents in a launcher of its own and returns that."""
    launchers = []
    with socket.create_server(("localhost", 0)) as server:
        endpoint = f"localhost:{server.getsockname()[1]}"

    def start(is_host):
        flags = elastic_flags(endpoint, is_host)
        command = [sys.executable, "-c", LAUNCHER, json.dumps([job.args(), flags])]
        launchers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT))
        return launchers[-1]

    with open(tmp_path / "told", "w+") as told:
        yield start
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
        told.seek(0)
        print(told.read())  # shown when the test fails


def elastic_flags(endpoint, is_host):
    return {
        "nnodes": "1:2",
        "nproc_per_node": 1,
        "max_restarts": 3,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": endpoint,
        "rdzv_id": "elastic",
        # else either agent holds the store, and who loses that agent cannot go on
        "rdzv_conf": f"is_host={int(is_host)}",
        "echo": False,
        "timeout_s": 120,
    }


def test_an_agent_that_is_lost_leaves_the_other_to_go_on_alone(job, start_agent):
    job.open_gate(0)
    host, lost = start_agent(is_host=True), start_agent(is_host=False)
    assert wait_until(lambda: len(job.notes("start", world_size=2)) == 2, 60)
    job.open_gate(3)
    assert wait_until(lambda: len(job.notes("done", step=2)) == 2, 60)
    assert len(job.processes()) == 6, "two launchers, each with an agent and a rank"
    kill_tree(lost)
    job.open_gate(NUM_STEPS)
    assert host.wait(60) == 0
    job.assert_trained_as_if_undisturbed()
    together = [(rank, 2, step) for step in range(3) for rank in (0, 1)]
    assert [step[1:] for step in job.steps()] == [*together, *((0, 1, step) for step in range(3, NUM_STEPS))]


def kill_tree(launcher):
    """Kills a launcher, its agent and its ranks, as the loss of their machine would."""
    root = psutil.Process(launcher.pid)
    tree = [root, *root.children(recursive=True)]
    for process in tree:
        process.kill()
    launcher.wait()
    assert are_gone([process.pid for process in tree])


def test_an_agent_that_joins_later_makes_the_ranks_go_on_together(job, start_agent):
    job.open_gate(3)
    host = start_agent(is_host=True)
    assert wait_until(lambda: job.notes("done", step=2), 60)
    late = start_agent(is_host=False)
    assert wait_until(lambda: len(job.notes("start", world_size=2)) == 2, 60)
    job.open_gate(NUM_STEPS)
    assert (host.wait(60), late.wait(60)) == (0, 0)
    job.assert_trained_as_if_undisturbed()
    alone = [(0, 0, 1, step) for step in range(3)]
    assert job.steps() == [*alone, *((0, rank, 2, step) for step in range(3, NUM_STEPS) for rank in (0, 1))]
    assert len({note["agent"] for note in job.notes("done", step=3)}) == 2
