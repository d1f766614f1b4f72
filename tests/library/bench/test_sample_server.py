"""The sample server: what it hands out, what it notes, and that nobody who asks can harm it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from worldsize import bench, framing
from worldsize.bench import Disturbance, LocalSamples, Samples, SampleServer, Task
from worldsize.bench.reference_run import flat_weights

TASK = Task(num_steps=4, batch_size=8, width=4)
ASKER = """
import sys
from worldsize.bench import Samples
samples = Samples(sys.argv[1], int(sys.argv[2]))
print("here", flush=True)
for step in range(4):
    sys.stdin.readline()
    samples.take(step, 0, 8)
    print(step, flush=True)
"""


@pytest.fixture
def server():
    with SampleServer(TASK, 7, "/tmp") as server:
        yield server


def call(server: SampleServer) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(server.address)
    sock.settimeout(20)
    return sock


def test_samples_are_those_of_the_seed_and_every_take_is_noted(server) -> None:
    first, second = Samples(server.address, 0), Samples(server.address, 1)
    for step in range(TASK.num_steps):
        images, labels = bench.Batches(7, 8).batch(step)
        got = first.take(step, 0, 5), second.take(step, 5, 8)
        assert torch.equal(torch.cat([one[0] for one in got]), images)
        assert torch.equal(torch.cat([one[1] for one in got]), labels)
    takes = server.record.takes
    assert [(take.rank, take.step, take.start, take.stop) for take in takes[:2]] == [(0, 0, 0, 5), (1, 0, 5, 8)]
    assert server.record.missed(TASK) == []
    assert [take.time_s for take in takes] == sorted(take.time_s for take in takes)


@pytest.mark.parametrize("kind", ["full_disk", "truncate"])
def test_a_training_without_checkpoints_says_why_none_can_be_damaged(kind) -> None:
    with (
        SampleServer(TASK, 7, "/tmp", Disturbance(kind, step=0, rank=0)) as server,
        pytest.raises(ValueError, match="this training keeps no checkpoints that could be damaged"),
    ):
        Samples(server.address, 0).take(0, 0, 8)


def test_a_sample_that_nobody_took_is_missed(server) -> None:
    samples = Samples(server.address, 0)
    for step in range(TASK.num_steps):
        samples.take(step, 0, 8 if step != 2 else 7)
    assert server.record.missed(TASK) == [2]


def test_the_window_is_from_the_first_sample_to_the_weights(server) -> None:
    samples, model = Samples(server.address, 0), TASK.model()
    for step in range(TASK.num_steps):
        samples.take(step, 0, 8)
    assert server.record.window_s(2) is None
    samples.hand_in(model)
    record = server.record
    assert record.handed_in_s and record.window_s(2) == record.handed_in_s - record.takes[2].time_s
    assert sum(record.step_times_s()) == pytest.approx(record.handed_in_s - record.takes[0].time_s)
    assert record.weights is not None and torch.equal(record.weights, flat_weights(model))


def test_samples_of_a_later_step_asked_for_early_only_lengthen_the_window(server) -> None:
    samples = Samples(server.address, 0)
    samples.take(3, 0, 8)
    early_s = server.record.takes[0].time_s
    for step in range(TASK.num_steps):
        samples.take(step, 0, 8)
    samples.hand_in(TASK.model())
    assert server.record.handed_in_s and server.record.window_s(2) == server.record.handed_in_s - early_s


@pytest.mark.parametrize(
    ("step", "start", "stop", "message"),
    [(4, 0, 8, "no step 4"), (-1, 0, 8, "no step -1"), (0, 0, 9, "no samples 0 to 9"), (0, 5, 4, "no samples 5 to 4")],
)
def test_what_there_is_not_is_refused_and_the_line_stays(server, step, start, stop, message) -> None:
    samples = Samples(server.address, 0)
    with pytest.raises(ValueError, match=message):
        samples.take(step, start, stop)
    assert len(samples.take(0, 0, 2)[1]) == 2
    assert len(server.record.takes) == 1


MISCHIEF = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n" * 3,
    "half a frame": framing.pack("take", step=0)[:15],
    "no fields": framing.pack("take"),
    "wrong kinds": framing.pack("take", rank="0", step=[0], start=True, stop=1e300),
    "deep header": framing.pack_header(b"[" * 100_000),
    "a header that claims to be huge": b"\xff" * 12,
    "weights that claim to be huge": framing.pack_header(b'{"kind": "hand_in"}', 1 << 40),
    "too few weights": framing.pack("hand_in", b"1234"),
    "another kind": framing.pack("stop"),
}


@pytest.mark.parametrize("sent", MISCHIEF.values(), ids=MISCHIEF)
def test_nothing_that_is_sent_harms_the_others(server, sent) -> None:
    honest = Samples(server.address, 0)
    with call(server) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(sent)
        honest.take(0, 0, 8)
    honest.take(1, 0, 8)
    assert [take.step for take in server.record.takes] == [0, 1]
    assert server.record.weights is None


def test_open_files_that_are_sent_are_closed(server) -> None:
    samples = Samples(server.address, 0)
    samples.take(0, 0, 1)
    before = psutil.Process().num_fds()
    with open(os.devnull) as file:
        for _ in range(20):
            framing.send(samples._sock, "take", fds=[file.fileno()], rank=0, step=0, start=0, stop=1)
            framing.receive(samples._sock)
    assert psutil.Process().num_fds() == before


def test_more_connections_than_it_takes_are_hung_up_on(server, monkeypatch) -> None:
    monkeypatch.setattr("worldsize.bench.sample_server._MAX_CONNECTIONS", 3)
    lines = [call(server) for _ in range(5)]
    answered = 0
    for line in lines:
        with contextlib.suppress(ConnectionError):
            line.sendall(framing.pack("take", rank=0, step=0, start=0, stop=1))
            answered += framing.receive(line) is not None
    for line in lines:
        line.close()
    assert answered == 3


def test_an_end_leaves_no_thread_no_file_and_no_folder() -> None:
    before = threading.active_count(), psutil.Process().num_fds()
    server = SampleServer(TASK, 1, "/tmp")
    lines = [call(server) for _ in range(4)]
    Samples(server.address, 0).take(0, 0, 8)
    server.close()
    for line in lines:
        line.close()
    assert not Path(server.address).parent.exists()
    assert threading.active_count() == before[0]
    assert psutil.Process().num_fds() <= before[1]


class Asker:
    """A process that asks for a step's samples on command."""

    def __init__(self, server: SampleServer, rank: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASKER, server.address, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout and self.process.stdout.readline() == "here\n"

    def ask(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def until(condition) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="another system does not report who calls")
def test_who_asks_for_the_step_is_killed_and_nobody_else() -> None:
    disturbance = Disturbance("kill", step=1, rank=1)
    with SampleServer(TASK, 1, "/tmp", disturbance) as server:
        askers = [Asker(server, rank) for rank in range(2)]
        for asker in askers:
            asker.ask()
            assert asker.answer() == "0\n"
        for asker in askers:
            asker.ask()
        assert askers[0].answer() == "1\n"
        assert askers[1].process.wait(20) == -signal.SIGKILL
        assert disturbance.time_s == max(take.time_s for take in server.record.takes if take.rank == 1)
        askers[0].ask()
        assert askers[0].answer() == "2\n"
        for asker in askers:
            asker.end()


@pytest.mark.skipif(sys.platform != "linux", reason="another system does not report who calls")
def test_who_is_stopped_goes_on_when_the_others_have_given_up() -> None:
    disturbance = Disturbance("stall", step=1, rank=0, patience_s=30)
    with SampleServer(TASK, 1, "/tmp", disturbance) as server:
        stalled, other = Asker(server, 0), Asker(server, 1)
        for asker in (stalled, other):
            asker.ask()
            assert asker.answer() == "0\n"
        stalled.ask()
        until(lambda: psutil.Process(stalled.process.pid).status() == psutil.STATUS_STOPPED)
        assert not disturbance.is_given_up
        other.end()
        assert stalled.answer() == "1\n"
        assert disturbance.is_given_up
        stalled.end()


@pytest.mark.skipif(sys.platform != "linux", reason="another system does not report who calls")
def test_who_is_held_goes_on_when_another_comes() -> None:
    disturbance = Disturbance("hold", step=1, rank=0, patience_s=30)
    with SampleServer(TASK, 1, "/tmp", disturbance) as server:
        held, other, new = (Asker(server, rank) for rank in (0, 1, 0))
        for asker in (held, other):
            asker.ask()
            assert asker.answer() == "0\n"
        assert not os.path.exists(disturbance.notice(server.address))
        held.ask()
        until(lambda: os.path.exists(disturbance.notice(server.address)))
        other.ask()
        assert other.answer() == "1\n"  # it had asked before
        assert [take.step for take in server.record.takes] == [0, 0, 1, 1]
        new.ask()
        assert [new.answer(), held.answer()] == ["0\n", "1\n"]
        assert not disturbance.is_given_up
        for asker in (held, other, new):
            asker.end()


def test_a_hold_is_given_up_where_no_other_comes() -> None:
    disturbance = Disturbance("hold", step=0, rank=0, patience_s=0.1)
    with SampleServer(TASK, 1, "/tmp", disturbance) as server:
        held = Asker(server, 0)
        held.ask()
        assert held.answer() == "0\n"
        assert disturbance.is_given_up
        held.end()


def test_without_a_harness_samples_are_drawn_here(monkeypatch) -> None:
    monkeypatch.delenv("WORLDSIZE_FEED", raising=False)
    samples = bench.open_samples(batch_size=8, seed=3)
    assert isinstance(samples, LocalSamples)
    images, labels = samples.take(1, 2, 5)
    whole = bench.Batches(3, 8).batch(1)
    assert torch.equal(images, whole[0][2:5]) and torch.equal(labels, whole[1][2:5])
    samples.hand_in(TASK.model())


def test_weights_trained_for_one_seed_are_worth_nothing_for_another() -> None:
    task = Task(num_steps=30, batch_size=64, width=8)
    model = task.model()
    trained = bench.train_alone(task, bench.Batches(1, 64)).weights
    torch.nn.utils.vector_to_parameters(trained, model.parameters())
    accuracy = {}
    for seed in (1, 2):
        images, labels = bench.Batches(seed, 512).batch(99)
        accuracy[seed] = float((model(images).argmax(1) == labels).float().mean())
    assert accuracy[1] > 0.6 > 0.3 > accuracy[2]
