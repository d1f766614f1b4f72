"""What goes out together: posts until their rank waits, and answers to all that the launcher has read."""

import os
import socket
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import framing, hardware
from worldsize.emulate.launcher.server import Emulation
from worldsize.emulate.protocol.messages import Blocked, Left, Posted, Refused, read_from_conductor, read_from_rank
from worldsize.emulate.worker.client import Client
from worldsize.emulate.worker.compute import FlopsMeter, Meter
from worldsize.launch.launcher.monitor import Monitor


class Nobody:
    """An observer that notes nothing."""

    def changed(self, *_):
        """Ignore a call's state."""

    def waiting(self, _work):
        """A context that does nothing."""
        return nullcontext()


@pytest.fixture
def rank():
    """A function that gives a client with this meter, and a function for the messages that it has sent."""
    ours, theirs = socket.socketpair()
    inbox = framing.Inbox(1 << 20)

    def sent():
        try:
            return [type(read_from_rank(header)) for header, _ in inbox.feed(theirs.recv(1 << 20, socket.MSG_DONTWAIT))]
        except BlockingIOError:
            return []

    with ours, theirs:
        yield lambda meter: (Client(ours, 0, 2, None, meter, Nobody()), sent)


def post(client, num_bytes=4):
    fields = {"dtype": "uint8", "num_items": num_bytes, "peer": 1}
    return client.post("send", "0", (0, 1), bytes(num_bytes), lambda _body: None, None, **fields)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda client: client.flush(), []),
        (lambda client: client.leave(), [Left]),
        (lambda client: client.note_refusal(), [Refused]),
    ],
    ids=["flush", "leave", "refusal"],
)
def test_posts_go_out_together_and_before_what_follows(rank, then, message):
    client, sent = rank(Meter())
    post(client)
    post(client)
    assert sent() == []
    then(client)
    assert sent() == [Posted, Posted, *message]


def test_posts_go_out_before_work_that_may_take_long(rank):
    client, sent = rank(FlopsMeter(hardware.H100))
    client.meter.start()
    try:
        post(client)
        tensor = torch.empty(4).view(2, 2)  # no work
        assert sent() == []
        tensor.fill_(1.0)
        assert sent() == [Posted]
    finally:
        client.meter.__exit__(None, None, None)


def test_large_posts_are_not_kept(rank):
    client, sent = rank(Meter())
    post(client, 100_000)
    assert sent() == [Posted]


def send_and_look(path):
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(1), 1)
        while not path.exists():
            os.sched_yield()
        work.wait()
    else:
        dist.recv(torch.empty(1), 0)
        path.touch()


def test_a_rank_that_never_waits_holds_up_no_other(tmp_path):
    ws.run(send_and_look, tmp_path / "came", world_size=2, cluster="dgx-h100", compute="none", echo=False, timeout_s=60)


def send_and_fail():
    if dist.get_rank() == 0:
        dist.isend(torch.ones(1), 1)
        raise ValueError("after the post")
    dist.recv(torch.empty(1), 0)
    raise RuntimeError("it came")


def test_what_a_rank_posted_before_it_failed_arrives():
    with pytest.raises(ws.RankFailed) as failed:
        ws.run(send_and_fail, world_size=2, cluster="dgx-h100", compute="none", echo=False, timeout_s=60)
    assert {failure.message for failure in failed.value.failures} == {"after the post", "it came"}  # in any order


class Selector:
    """What the launcher registers sockets with."""

    def register(self, *_):
        """Take a socket."""


def test_answers_go_out_together():
    emulation = Emulation(world_size=2, cluster="dgx-h100", allow=None, compute="none")
    ends = [connection.theirs.dup() for connection in emulation._connections]
    emulation.listen(Selector(), lambda *fault: pytest.fail(str(fault)), pytest.fail)
    for rank, end in enumerate(ends):
        group = {"group": "0", "dtype": "uint8", "ranks": (0, 1), "peer": 1 - rank}
        send = Posted(number=1, op="send", num_items=4, **group).to_bytes()
        receive = Posted(number=2, op="recv", num_items=0, **group).to_bytes()
        end.sendall(
            framing.pack_header(send, 4)
            + b"%d..." % rank
            + framing.pack_header(receive)
            + framing.pack_header(Blocked((1,)).to_bytes())
        )
    for connection in emulation._connections:
        emulation._serve(connection)
    for end in ends:
        with pytest.raises(BlockingIOError):
            end.recv(1, socket.MSG_DONTWAIT)
    emulation.send_answers()
    for rank, end in enumerate(ends):
        answers = framing.Inbox(100).feed(end.recv(1000))
        assert sorted((read_from_conductor(header).number, body) for header, body in answers) == [
            (1, b""),
            (2, b"%d..." % (1 - rank)),
        ]
        end.close()
    emulation.close()


def test_nobody_looks_at_the_calls_of_ranks_that_have_posted():
    monitor = Monitor(0.0, 10.0, stalled_s=1e-9)
    assert monitor.stall(1, lambda: pytest.fail("it looked")) is None
    assert monitor.stall(1, lambda: "here") is None
    assert "No progress" in monitor.stall(1, lambda: "here").reason
