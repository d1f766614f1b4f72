"""Messages between ranks and conductor: what is sent is read, and what is malformed or impossible is refused."""

import json
import re
import socket

import pytest

from worldsize import framing, hardware
from worldsize.emulate.messages import (
    Answer,
    Blocked,
    Compute,
    Emulated,
    Hurry,
    Left,
    Posted,
    read_from_conductor,
    read_from_rank,
)
from worldsize.emulate.record import COMPUTE, WAIT, Step
from worldsize.emulate.server import Emulation
from worldsize.message import kind_of, pack_and_send, read

STEPS = [Step(COMPUTE, 0, 0.5, "matmul", "forward"), Step(WAIT, 1)]
SEND = Posted(2, "send", "0", "float32", 4, peer=1, tag=3)
REDUCE = Posted(1, "all_reduce", "0", "float32", 4, ranks=(0, 1), reduction="SUM", splits=(2, 2), steps=STEPS)
COMPUTES = Compute("flops", 1.0, hardware.H100)


@pytest.mark.parametrize(
    "message",
    [
        SEND,
        REDUCE,
        Blocked(3, STEPS),
        Left(STEPS),
        Hurry(),
        Answer(3),
        Answer(3, src=0),
        Emulated(8, COMPUTES, ["send"]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_read_as_it_was_sent(message):
    one, other = socket.socketpair()
    with one, other:
        pack_and_send(one, message, b"body")
        header, body, _ = framing.receive(other)
    assert (read(header, type(message)), body) == (message, b"body")


def header_of(message, **changes):
    """The header of a message with other fields, as it comes over the wire."""
    return json.loads(json.dumps({"kind": kind_of(type(message)), **message.to_fields(), **changes}))


@pytest.mark.parametrize(
    ("message", "changes", "words"),
    [
        (Left(), {"kind": "wait"}, "a message of the kind 'wait' was not expected"),
        (Left(), {"kind": None}, "of the kind 'None' was not expected"),
        (Left(), {"kind": "answer", "number": 1}, "of the kind 'answer' was not expected"),
        (SEND, {"number": "2"}, "number is a str; it must be a whole number"),
        (SEND, {"op": None}, "op has more than 200 characters, or is not text"),
        (SEND, {"op": "x" * 300}, "op has more than 200 characters"),
        (SEND, {"group": 0}, "group has .* or is not text"),
        (SEND, {"dtype": []}, "dtype has .* or is not text"),
        (SEND, {"num_items": -1}, "a negative size"),
        (SEND, {"num_items": 1.0}, "num_items is a float; it must be a whole number"),
        (SEND, {"peer": [1]}, "peer is a list; it must be a whole number"),
        (SEND, {"tag": True}, "tag is a bool; it must be a whole number"),
        (SEND, {"splits": [-5]}, "a negative size"),
        (SEND, {"ranks": [0, "1"]}, "ranks has something other than whole numbers"),
        (SEND, {"ranks": {"0": 1}}, "ranks is a dict; it must be a list"),
        (SEND, {"reduction": 3}, "reduction has .* or is not text"),
        (Blocked(1), {"number": None}, "number is a NoneType; it must be a whole number"),
        (Left(), {"steps": 3}, "steps is a int; it must be a list"),
        (Left(), {"steps": [["wait", 1]]}, "a step is a kind, a number, a duration"),
        (Left(), {"steps": [["post", 1, 0, "", ""]]}, "a step of kind 'post'"),
        (Left(), {"steps": [["compute", 0, -1, "", ""]]}, "that takes -1 s"),
        (Left(), {"steps": [["compute", 0, 1e10, "", ""]]}, r"that takes 1e\+10 s"),
        (Left(), {"steps": [["compute", 0, float("nan"), "", ""]]}, "that takes nan s"),
        (Left(), {"steps": [["wait", 1.5, 0, "", ""]]}, "a step has a whole number, and its labels are text"),
        (Left(), {"steps": [["wait", 1, 0, [], ""]]}, "a step has a whole number, and its labels are text"),
    ],
    ids=lambda value: ascii(value) if isinstance(value, dict) else "",
)
def test_a_malformed_message_of_a_rank_is_refused(message, changes, words):
    with pytest.raises(ValueError, match=words):
        read_from_rank(header_of(message, **changes))


def test_long_labels_are_cut():
    (step,) = read_from_rank(header_of(Left(), steps=[["compute", 0, 1, "x" * 1000, "y" * 1000]])).steps
    assert (len(step.name), len(step.work)) == (80, 80)


def test_a_rank_takes_no_message_of_another_rank():
    with pytest.raises(ValueError, match="a message of the kind 'left' was not expected"):
        read_from_conductor(header_of(Left()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "guessed"}, "work cannot be priced by 'guessed'"),
        ({"scale": "1"}, "scale is a str; it must be a number"),
        ({"gpu": {"peak_flops_per_s": {"float32": None}}}, "float32 is a NoneType; it must be a number"),
        ({"gpu": {"launch_s": -1}}, "launch_s is -1.0; it must be 0 or more seconds"),
    ],
    ids=ascii,
)
def test_prices_of_a_job_that_cannot_be_are_refused(changes, words):
    fields = COMPUTES.to_fields()
    fields |= {name: fields[name] | value if name == "gpu" else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=words):
        Emulated.parse({"local_world_size": 8, "compute": fields, "allow": None})


# what the launcher refuses because of what the rank has sent before


@pytest.fixture
def faults():
    """A function that gives the faults found in what rank 0 of two sends."""
    emulation = Emulation(world_size=2, cluster="dgx-h100", allow=None, compute="none")

    def found(*messages):
        faults = []
        selector = Selector()
        emulation.listen(selector, lambda rank, kind, reason: faults.append((rank, kind, reason)))
        connection = emulation._connections[0]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection.ours.close()
        connection.ours = ours
        with theirs:
            for message, body in messages:
                pack_and_send(theirs, message, body)
            emulation._serve(connection)
        return faults

    yield found
    emulation.close()


class Selector:
    """What the launcher registers sockets with."""

    def register(self, *_):
        """Take a socket."""

    def unregister(self, *_):
        """Forget a socket."""


FIRST = Posted(1, "all_reduce", "0", "float32", 1, ranks=(0, 1), reduction="SUM")


def changed(**changes):
    return Posted(**{**vars(FIRST), **changes})


def test_what_our_backend_sends_has_no_fault(faults):
    assert faults((FIRST, bytes(4)), (Blocked(1, [Step(WAIT, 1)]), b""), (Left(), b"")) == []


@pytest.mark.parametrize(
    ("posted", "body", "words"),
    [
        (changed(op="juggle"), bytes(4), "there is no operation juggle SUM"),
        (changed(reduction="JUGGLE"), bytes(4), "there is no operation all_reduce JUGGLE"),
        (changed(ranks=None), bytes(4), "a call in the group '0', whose ranks are not known"),
        (changed(ranks=(0, 9)), bytes(4), r"all_reduce among \(0, 9\), of rank 0"),
        (changed(ranks=(1,)), bytes(4), r"all_reduce among \(1,\), of rank 0"),
        (changed(ranks=(0, 0)), bytes(4), r"all_reduce among \(0, 0\), of rank 0"),
        (changed(op="send", peer=0), bytes(4), "of rank 0 with 0"),
        (changed(op="send", peer=5), bytes(4), "of rank 0 with 5"),
        (changed(number=2), bytes(4), "post 2 after 0"),
        (changed(num_items=3), bytes(4), "4 bytes for 3 items"),
        (changed(num_items=0), bytes(4), "4 bytes for 0 items"),
        (Blocked(1), b"", "a wait for post 1 of 0"),
        (Left(steps=[Step(WAIT, 1)]), b"", "a wait for post 1 of 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_cannot_be_is_a_fault_of_its_rank(faults, posted, body, words):
    ((rank, kind, reason),) = faults((posted, body))
    assert (rank, kind) == (0, "broken message") and re.search(words, reason), reason
