"""Messages between launcher, forkserver and ranks: what is sent is read, and what is malformed is refused."""

import json
import socket

import pytest

from worldsize import framing
from worldsize.launch.protocol import messages
from worldsize.launch.protocol.call_log import Call
from worldsize.launch.protocol.failure import Cause, Failure
from worldsize.launch.protocol.messages import (
    Done,
    Emulated,
    Events,
    Failed,
    Hello,
    Job,
    Joined,
    Kill,
    Leave,
    Place,
    Position,
    pack_and_send,
    read,
    read_from_rank,
)
from worldsize.launch.protocol.source import Line

LINE = Line("/tmp/a.py", 3, "step", "f()")
FAILURE = Failure(0, "KeyError", "'weights'", [LINE], 10)
JOB = Job(
    1, 2, "auto", 60.0, 1, {"A": "1"}, {}, "/tmp/s", "", Place("/", ["/lib"]), Emulated(8, {"kind": "none"}, None)
)


@pytest.mark.parametrize(
    "message",
    [
        JOB,
        Leave(),
        Kill([1, 2]),
        Hello(1, 0, 0, 2, 0),
        Joined("gloo"),
        Position([LINE], Call(0, "all_reduce", sequence=3), 3),
        Position([]),
        Events([["calls", "x"]]),
        Done([("step", "forward", 0.5, 1.0)], 2.0),
        Failed(FAILURE, [("step", "forward", 0.5, 1.0)]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_read_as_it_was_sent(message):
    one, other = socket.socketpair()
    with one, other:
        pack_and_send(one, message, b"body")
        header, body, _ = framing.receive(other)
    assert (read(header, type(message)), body) == (message, b"body")


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "exited", "job": 1, "status": 0},
        {"kind": ["done"]},
        {"kind": "joined"},
        {"kind": "joined", "backend": 3},
        {"kind": "position", "lines": {}},
        {"kind": "position", "lines": [3]},
        {"kind": "position", "lines": [{"filename": "a", "number": "3", "function": "f", "text": ""}]},
        {"kind": "position", "lines": [], "native": []},
        {"kind": "position", "lines": [], "native": {"number": 1}},
        {"kind": "position", "lines": [], "num_native": True},
        {"kind": "events", "events": "all"},
        {"kind": "done", "spans": []},
        {"kind": "done", "spans": [], "duration_s": float("nan")},
        {"kind": "done", "spans": [], "duration_s": 10**400},
        {"kind": "done", "spans": 3, "duration_s": 1},
        {"kind": "done", "spans": [[1, 2, 3]], "duration_s": 1},
        {"kind": "done", "spans": [["a", "b", 0, float("inf")]], "duration_s": 1},
        {"kind": "failed", "spans": [], "failure": None},
        {"kind": "failed", "spans": [], "failure": {"kind": 3, "message": "", "lines": [], "time_ns": 0}},
    ],
    ids=ascii,
)
def test_a_malformed_message_of_a_rank_is_refused(fields):
    with pytest.raises(ValueError, match=r"."):
        read_from_rank(json.loads(json.dumps(fields)))


def test_a_rank_cannot_say_whose_failure_it_is_nor_how_it_was_seen():
    fields = FAILURE.to_fields() | {"rank": 5, "cause": Cause.SIGNAL.value}
    failed = read_from_rank({"kind": "failed", "spans": [], "failure": fields})
    assert (failed.failure.rank, failed.failure.cause) == (0, Cause.REPORTED)


def test_every_message_has_a_kind_of_its_own():
    kinds = [messages._kind(one) for one in messages.Message.__subclasses__()]
    assert len(kinds) == len(set(kinds)) > 15
