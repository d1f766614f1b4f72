"""Messages between launcher, forkserver and ranks: what is sent is read, and what is malformed is refused."""

import json
import socket

import pytest

from worldsize import framing, hardware
from worldsize.emulate.protocol.messages import Compute, Emulated
from worldsize.launch.protocol.call_log import Call
from worldsize.launch.protocol.events import SentEvent
from worldsize.launch.protocol.failure import Failure, FailureCause
from worldsize.launch.protocol.messages import (
    Done,
    Events,
    Failed,
    Held,
    Hello,
    Joined,
    Kill,
    Leave,
    Position,
    RunFunction,
    ThreadFailed,
    WorkingDirectory,
    read_from_rank,
)
from worldsize.memory import KINDS, Holding, MemoryUse
from worldsize.message import Message, pack_and_send, read, to_fields
from worldsize.source import Line

LINE = Line("/tmp/a.py", 3, "step", "f()")
FAILURE = Failure(0, "KeyError", "'weights'", [LINE], 10)
HELLO = Hello(pid=7, rank=1, local_rank=0, world_size=2, restarts=0)
COMPUTE = Compute(kind="none", scale=1.0, gpu=hardware.H100)
JOB = RunFunction(
    rank=1,
    world_size=2,
    backend="auto",
    timeout_s=60.0,
    num_threads=1,
    env={"A": "1"},
    sources={},
    store="/tmp/s",
    place=WorkingDirectory("/", ["/lib"]),
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
        Events([SentEvent("calls", "wait", "wait", 0.5, 1.0)]),
        Held(MemoryUse([1], {kind: [8] for kind in KINDS}, [Holding(KINDS[0], "mlp", "line 3", 8)])),
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
        ({"kind": "exited", "job": 1, "status": 0}, r"Invalid value 'exited' - at `\$.kind`"),
        ({"kind": ["done"]}, r"Expected `str`, got `list` - at `\$.kind`"),
        ({"kind": "\ud800"}, "surrogates not allowed"),
        ({}, "Object missing required field `kind`"),
        ([], "expected named fields, got a list"),
        ({"kind": "joined"}, "Object missing required field `backend`"),
        ({"kind": "joined", "backend": 3}, r"Expected `str`, got `int` - at `\$.backend`"),
        ({"kind": "joined", "backend": "x" * 81}, r"Expected `str` of length <= 80 - at `\$.backend`"),
        ({"kind": "position", "lines": {}}, r"Expected `array`, got `object` - at `\$.lines`"),
        ({"kind": "position", "lines": [3]}, r"Expected `object`, got `int` - at `\$.lines\[0\]`"),
        ({"kind": "position", "lines": [vars(LINE)] * 21}, r"Expected `array` of length <= 20 - at `\$.lines`"),
        (
            {"kind": "position", "lines": [vars(LINE) | {"number": "3"}]},
            r"Expected `int`, got `str` - at `\$.lines\[0\].number`",
        ),
        (
            {"kind": "position", "lines": [vars(LINE) | {"text": "x" * 201}]},
            r"Expected `str` of length <= 200 - at `\$.lines\[0\].text`",
        ),
        ({"kind": "position", "lines": [], "native": []}, r"Expected `object \| null`, got `array` - at `\$.native`"),
        ({"kind": "position", "lines": [], "native": {"number": 1}}, "Object missing required field `op`"),
        (
            {"kind": "position", "lines": [], "native": {"number": 1, "op": "x", "state": "done"}},
            "native is a call in the state 'done'; it must be 'waiting'",
        ),
        ({"kind": "position", "lines": [], "num_native": True}, r"Expected `int`, got `bool` - at `\$.num_native`"),
        ({"kind": "events", "events": "all"}, r"Expected `array`, got `str` - at `\$.events`"),
        ({"kind": "events", "events": [["a", "b", "c", 1, 2]] * 2001}, "Expected `array` of length <= 2000"),
        ({"kind": "events", "events": [["a" * 81, "b", "c", 1, 2]]}, "Expected `str` of length <= 80"),
        ({"kind": "done", "spans": []}, "Object missing required field `duration_s`"),
        ({"kind": "done", "spans": [], "duration_s": float("nan")}, r"Expected `float` .* - at `\$.duration_s`"),
        ({"kind": "done", "spans": [], "duration_s": 10**400}, r"Number out of range - at `\$.duration_s`"),
        ({"kind": "done", "spans": 3, "duration_s": 1}, r"Expected `array`, got `int` - at `\$.spans`"),
        ({"kind": "done", "spans": [[1, 2, 3]], "duration_s": 1}, "Expected `array` of length 4, got 3"),
        ({"kind": "done", "spans": [["a", "b", 0, float("inf")]], "duration_s": 1}, "Expected `float` <= 1e"),
        ({"kind": "done", "spans": [["a" * 81, "b", 0, 1]], "duration_s": 1}, "Expected `str` of length <= 80"),
        ({"kind": "failed", "spans": [], "failure": None}, r"Expected `object`, got `null` - at `\$.failure`"),
        (
            {"kind": "failed", "spans": [], "failure": to_fields(FAILURE) | {"kind": 3}},
            r"Expected `str`, got `int` - at `\$.failure.kind`",
        ),
        (
            {"kind": "failed", "spans": [], "failure": to_fields(FAILURE) | {"message": "x" * 4001}},
            "Expected `str` of length <= 4000",
        ),
        ({"kind": "held", "use": {"operations": [1], "sizes": {}}}, "the kinds of memory must be"),
        ({"kind": "held", "use": {"operations": [1] * 4001, "sizes": {}}}, "Expected `array` of length <= 4000"),
    ],
    ids=lambda value: ascii(value)[:60] if not isinstance(value, str) else "",
)
def test_a_malformed_message_of_a_rank_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        read_from_rank(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 2}, "rank is 2; it must be below the world size, 2"),
        ({"rank": -1}, r"Expected `int` >= 0 - at `\$.rank`"),
        ({"world_size": 0}, "rank is 1; it must be below the world size, 0"),
        ({"pid": -5}, r"Expected `int` >= 2 - at `\$.pid`"),
        ({"pid": "7"}, r"Expected `int`, got `str` - at `\$.pid`"),
    ],
    ids=str,
)
def test_a_hello_that_cannot_be_is_refused(changes, words):
    fields = to_fields(HELLO)
    assert read(json.dumps(fields).encode(), Hello) == HELLO
    with pytest.raises(ValueError, match=words):
        read(json.dumps(fields | changes).encode(), Hello)


@pytest.mark.parametrize(("field", "value"), [("backend", 3), ("store", None), ("network", []), ("emulated", 3)])
def test_a_malformed_job_is_refused(field, value):
    fields = to_fields(JOB)
    assert read(json.dumps(fields).encode(), RunFunction) == JOB
    with pytest.raises(ValueError, match=rf"Expected `.*`, got `.*` - at `\$.{field}`"):
        read(json.dumps({**fields, field: value}).encode(), RunFunction)


def test_a_rank_cannot_say_whose_failure_it_is_nor_how_it_was_seen():
    fields = to_fields(FAILURE) | {"rank": 5, "cause": FailureCause.SIGNAL.value}
    failed = read_from_rank(json.dumps({"kind": "failed", "spans": [], "failure": fields}).encode())
    assert (failed.failure.rank, failed.failure.cause) == (0, FailureCause.REPORTED)


def test_every_message_has_a_kind_of_its_own():
    kinds = [one.__struct_config__.tag for one in Message.__subclasses__()]
    assert len(kinds) == len(set(kinds)) > 15
