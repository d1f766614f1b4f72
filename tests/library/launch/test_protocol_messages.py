"""Messages between launcher, forkserver and ranks: what is sent is read, and what is malformed is refused."""

import json
import socket

import pytest

from worldsize import framing, hardware
from worldsize.emulate.protocol.messages import Compute, Emulated
from worldsize.launch.protocol.call_log import Call
from worldsize.launch.protocol.failure import Cause, Failure
from worldsize.launch.protocol.messages import (
    Done,
    Events,
    Failed,
    Hello,
    Job,
    Joined,
    Kill,
    Leave,
    Place,
    Position,
    ThreadFailed,
    read_from_rank,
)
from worldsize.launch.protocol.source import Line
from worldsize.message import Message, kind_of, pack_and_send, read

LINE = Line("/tmp/a.py", 3, "step", "f()")
FAILURE = Failure(0, "KeyError", "'weights'", [LINE], 10)
HELLO = Hello(pid=7, rank=1, local_rank=0, world_size=2, restarts=0)
COMPUTE = Compute(kind="none", scale=1.0, gpu=hardware.H100)
JOB = Job(
    rank=1,
    world_size=2,
    backend="auto",
    timeout_s=60.0,
    num_threads=1,
    env={"A": "1"},
    sources={},
    store="/tmp/s",
    place=Place("/", ["/lib"]),
    emulated=Emulated(local_world_size=8, compute=COMPUTE, allow=None),
)


@pytest.mark.parametrize(
    "message",
    [
        JOB,
        Leave(),
        Kill([1, 2]),
        HELLO,
        Joined("gloo"),
        Position([LINE], Call(0, "all_reduce", sequence=3), 3),
        Position([]),
        ThreadFailed("Thread-1 (load)", FAILURE),
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
    ("fields", "words"),
    [
        ({"kind": "exited", "job": 1, "status": 0}, "a message of the kind 'exited' was not expected"),
        ({"kind": ["done"]}, r"a message of the kind \"\['done'\]\" was not expected"),
        ({"kind": "joined"}, "backend is a NoneType; it must be text"),
        ({"kind": "joined", "backend": 3}, "backend is a int; it must be text"),
        ({"kind": "position", "lines": {}}, "lines is a dict; it must be a list"),
        ({"kind": "position", "lines": [3]}, "expected named fields, got a int"),
        (
            {"kind": "position", "lines": [{"filename": "a", "number": "3", "function": "f", "text": ""}]},
            "number is a str; it must be a whole number",
        ),
        ({"kind": "position", "lines": [], "native": []}, "expected named fields, got a list"),
        ({"kind": "position", "lines": [], "native": {"number": 1}}, "not a call: 'op'"),
        ({"kind": "position", "lines": [], "num_native": True}, "num_native is a bool; it must be a whole number"),
        ({"kind": "events", "events": "all"}, "events is a str; it must be a list"),
        ({"kind": "events", "events": [[]] * 2001}, "a message of 2001 events; at most 2000 travel in one"),
        ({"kind": "done", "spans": []}, "duration_s is a NoneType; it must be a number"),
        ({"kind": "done", "spans": [], "duration_s": float("nan")}, "duration_s is nan; it must be finite"),
        ({"kind": "done", "spans": [], "duration_s": 10**400}, "duration_s is a int; it must be a number"),
        ({"kind": "done", "spans": 3, "duration_s": 1}, "spans is a int; it must be a list"),
        ({"kind": "done", "spans": [[1, 2, 3]], "duration_s": 1}, "a span is a name, a kind, a start and an end"),
        ({"kind": "done", "spans": [["a", "b", 0, float("inf")]], "duration_s": 1}, "an end is inf; it must be finite"),
        ({"kind": "failed", "spans": [], "failure": None}, "expected named fields, got a NoneType"),
        (
            {"kind": "failed", "spans": [], "failure": {"kind": 3, "message": "", "lines": [], "time_ns": 0}},
            "kind is a int; it must be text",
        ),
    ],
    ids=lambda value: ascii(value)[:60] if isinstance(value, dict) else "",
)
def test_a_malformed_message_of_a_rank_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        read_from_rank(json.loads(json.dumps(fields)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 2}, "there is no rank 2 of 2"),
        ({"rank": -1}, "there is no rank -1 of 2"),
        ({"world_size": 0}, "there is no rank 1 of 0"),
        ({"pid": -5}, "a rank is not process -5"),
        ({"pid": "7"}, "pid is a str; it must be a whole number"),
    ],
    ids=str,
)
def test_a_hello_that_cannot_be_is_refused(changes, words):
    assert read({"kind": "hello", **vars(HELLO)}, Hello) == HELLO
    with pytest.raises(ValueError, match=words):
        read({"kind": "hello", **vars(HELLO), **changes}, Hello)


@pytest.mark.parametrize(
    "message", [{"kind": "done", "duration_s": 1}, {"kind": "failed", "failure": FAILURE.to_fields()}]
)
def test_names_and_kinds_of_spans_are_cut(message):
    ((name, kind, *times),) = read_from_rank({**message, "spans": [["x" * 1000, "y" * 1000, 0, 1]]}).spans
    assert (len(name), len(kind), times) == (80, 80, [0.0, 1.0])


@pytest.mark.parametrize(("field", "value"), [("backend", 3), ("store", None), ("network", []), ("emulated", 3)])
def test_a_malformed_job_is_refused(field, value):
    fields = json.loads(json.dumps({"kind": "job", **JOB.to_fields()}))
    assert read(fields, Job) == JOB
    with pytest.raises(ValueError, match=f"{field} is a|expected named fields"):
        read({**fields, field: value}, Job)


def test_a_rank_cannot_say_whose_failure_it_is_nor_how_it_was_seen():
    fields = FAILURE.to_fields() | {"rank": 5, "cause": Cause.SIGNAL.value}
    failed = read_from_rank({"kind": "failed", "spans": [], "failure": fields})
    assert (failed.failure.rank, failed.failure.cause) == (0, Cause.REPORTED)


def test_every_message_has_a_kind_of_its_own():
    kinds = [kind_of(one) for one in Message.__subclasses__()]
    assert len(kinds) == len(set(kinds)) > 15
