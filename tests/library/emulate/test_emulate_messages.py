"""Messages between ranks and conductor: what is sent is read, and what is malformed or impossible is refused."""

import json
import re
import socket
import struct
from dataclasses import replace

import pytest

from worldsize import framing, hardware
from worldsize.emulate.launcher.server import Emulation
from worldsize.emulate.protocol.messages import (
    Awaited,
    Blocked,
    Compute,
    Emulated,
    Hurry,
    Left,
    OperationFailed,
    OperationResult,
    Posted,
    Refused,
    read_from_conductor,
    read_from_rank,
)
from worldsize.emulate.protocol.record import COMPUTE, JOIN, MARK, POST, WAIT, Step
from worldsize.launch.protocol.messages import RunFunction
from worldsize.message import pack_and_send, parse, read, to_fields

STEPS = [
    Step(COMPUTE, 0, 0.5, "mätmul \ud800", "forward"),
    Step(WAIT, 1),
    Step(MARK, 1, lane="loader"),
    Step(JOIN, 1),
    Step("read local", 1 << 40, lane="loader"),
]
SEND = Posted(2, "send", "0", "float32", 4, peer=1, tag=-3)
REDUCE = Posted(1, "all_reduce", "0", "float32", 4, ranks=(0, 1), reduction="SUM", splits=(2, 2), steps=STEPS)
COMPUTES = Compute("flops", 1.0, hardware.H100)
AWAITED = Awaited(3, 2, 0.5, "loader", STEPS)
FROM_RANK = [SEND, REDUCE, Posted(1, "barrier", "0", "", 0, lane="loader")]
FROM_RANK += [AWAITED, Awaited(2, 1, 1e9), Blocked((3, 4), True, STEPS), Blocked((), False), Left(STEPS), Refused()]


def test_a_job_is_read_as_it_was_sent():
    one, other = socket.socketpair()
    with one, other:
        cluster = Emulated(8, COMPUTES, ["send"], {"read": "no shared storage"})
        sent = RunFunction(1, 2, "auto", 60.0, 1, env={}, sources={}, emulated=cluster)
        pack_and_send(one, sent, b"body")
        header, body, _ = framing.receive(other)
    assert (read(header, RunFunction), body) == (sent, b"body")


@pytest.mark.parametrize("message", FROM_RANK, ids=lambda message: type(message).__name__)
def test_a_message_of_a_rank_is_read_as_it_was_sent(message):
    ((header, body),) = framing.Inbox(4).feed(framing.pack_header(message.to_bytes(), 4) + b"body")
    assert (read_from_rank(header), body) == (message, b"body")


@pytest.mark.parametrize(
    "message",
    [
        Hurry(),
        OperationResult(3),
        OperationResult(3, src=0),
        OperationFailed(3, 0.5, (0, 2)),
        OperationFailed(3, 0.0, ()),
    ],
    ids=ascii,
)
def test_a_message_of_the_conductor_is_read_as_it_was_sent(message):
    assert read_from_conductor(message.to_bytes()) == message


def test_frames_come_in_pieces_of_any_length():
    frames = [(one.to_bytes(), b"x" * place) for place, one in enumerate(FROM_RANK)]
    sent = b"".join(framing.pack_header(header, len(body)) + body for header, body in frames)
    for length in (1, 7, 100, len(sent)):
        inbox = framing.Inbox(1000)
        came = [one for start in range(0, len(sent), length) for one in inbox.feed(sent[start : start + length])]
        assert came == frames


@pytest.mark.parametrize(
    ("lengths", "error"),
    [((1 << 31, 0), "the header has 2147483648 bytes"), ((9, 1 << 60), "the message has 11529.* bytes")],
)
def test_a_frame_longer_than_is_taken_is_refused_before_it_comes(lengths, error):
    with pytest.raises(ValueError, match=error):
        framing.Inbox(1 << 20).feed(struct.pack("<IQ", *lengths))


@pytest.mark.parametrize("message", FROM_RANK, ids=lambda message: type(message).__name__)
def test_a_message_that_is_cut_or_goes_on_is_refused(message):
    header = message.to_bytes()
    for length in range(len(header)):
        with pytest.raises(ValueError, match=r"truncated|not a type expected"):
            read_from_rank(header[:length])
    with pytest.raises(ValueError, match="longer than its fields"):
        read_from_rank(header + b"x")


def posted(names, num_ranks=-1, num_splits=0, num_steps=0, rest=b""):
    """The header of a post with these names and these counts."""
    return struct.pack("<BIQQqqqII", 0, num_steps, 1, 1, 1, 0, num_ranks, num_splits, len(names)) + names + rest


def left(kind=0, number=1, duration_s=0.0, labels=b"", num_steps=1):
    """The header of a rank's last message with this step."""
    return struct.pack("<BIBQdI", 2, num_steps, kind, number, duration_s, len(labels)) + labels


def awaited(timeout_s=1.0, lane=b""):
    """The header of a wait that ends."""
    return struct.pack("<BIQQdI", 6, 0, 2, 1, timeout_s, len(lane)) + lane


def names(**changes):
    known = {"op": "send", "group": "0", "dtype": "float32", "reduction": "", "lane": ""}
    return json.dumps([*(known | changes).values()]).encode()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", "begins with b'', which is not a type expected here"),
        (OperationResult(1).to_bytes(), "not a type expected"),
        (b"\xff" + bytes(100), r"begins with b'\\xff', which is not a type expected"),
        (posted(names(op="x" * 300)), "op has more than 200 characters"),
        (posted(names(group="x" * 201)), "group has more than 200 characters"),
        (posted(names(lane="x" * 201)), "lane has more than 200 characters"),
        (posted(names(op="x" * 20_000)), "a name has more than 200 characters"),
        (posted(names(dtype=3)), "names must be a list of 5 strings"),
        (posted(b'["send"]'), "names must be a list of 5 strings"),
        (posted(b'{"op": "send"}'), "names must be a list of 5 strings"),
        (posted(b"[" * 9000), "names are nested too deeply"),
        (posted(b"send"), "Expecting value"),
        (posted(b"\xff\xff"), "invalid"),
        (posted(names(), num_ranks=1 << 60), "the message is truncated"),
        (posted(names(), num_splits=1 << 31), "the message is truncated"),
        (posted(names(), num_splits=1, rest=struct.pack("<q", -5)), "must not contain a negative size"),
        (posted(names(), num_steps=1 << 31), "the message is truncated"),
        (left(kind=10), "a step has the unknown kind 10"),
        (left(kind=9, number=(1 << 50) + 1), "a transfer has 1125899906842625 bytes; the limit is 1125899906842624"),
        (awaited(timeout_s=-1.0), "timeout_s is -1; it must be"),
        (awaited(timeout_s=1e10), r"timeout_s is 1e\+10; it must be"),
        (awaited(timeout_s=float("nan")), "timeout_s is nan; it must be"),
        (awaited(lane=b'["", "compute", 7]'), "names must be a list of 3 strings"),
        (awaited(lane=b" " * 20_000), "the name of a lane has more than 200 characters"),
        (left(duration_s=-1.0), "a step takes -1 s"),
        (left(duration_s=1e10), r"a step takes 1e\+10 s"),
        (left(duration_s=float("nan")), "a step takes nan s"),
        (left(labels=b'["", ""]'), "names must be a list of 3 strings"),
        (left(labels=b'["", [], ""]'), "names must be a list of 3 strings"),
        (left(labels=json.dumps(["", "", "x" * 201]).encode()), "the name of a lane has more than 200 characters"),
        (left(labels=b" " * 20_000), "the name of a lane has more than 200 characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_message_of_a_rank_is_refused(header, words):
    with pytest.raises(ValueError, match=words):
        read_from_rank(header)


def test_a_rank_cannot_report_a_post_as_a_step():
    with pytest.raises(KeyError):
        Left([Step(POST, 1)]).to_bytes()


def test_long_labels_are_cut():
    long = json.dumps(["x" * 1000, "y" * 1000, ""]).encode()
    for header in (left(labels=long), Left([Step(COMPUTE, 1, 0.0, "x" * 1000, "y" * 1000)]).to_bytes()):
        (step,) = read_from_rank(header).steps
        assert (len(step.name), len(step.work)) == (80, 80)


def test_a_rank_takes_no_message_of_another_rank():
    with pytest.raises(ValueError, match="not a type expected"):
        read_from_conductor(Left().to_bytes())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "guessed"}, "kind is 'guessed'; it must be one of"),
        ({"scale": "1"}, "Expected `float`, got `str`"),
        ({"gpu": {"peak_flops_per_s": {"float32": None}}}, "Expected `float`, got `null`"),
        ({"gpu": {"launch_s": -1}}, "launch_s is -1.0; it must be 0 or more seconds"),
    ],
    ids=ascii,
)
def test_prices_of_a_job_that_cannot_be_are_refused(changes, words):
    fields = to_fields(COMPUTES)
    fields |= {name: fields[name] | value if name == "gpu" else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=words):
        parse({"local_world_size": 8, "compute": fields, "allow": None}, Emulated)


# what the launcher refuses because of what the rank has sent before


WITHOUT_STORAGE = replace(hardware.DGX_H100, shared_storage=None)


@pytest.fixture
def faults():
    """A function that gives the faults found in what rank 0 of two sends."""
    emulation = Emulation(world_size=2, cluster=WITHOUT_STORAGE, allow=None, compute="none")

    def found(*messages):
        faults = []
        selector = Selector()
        emulation.listen(selector, lambda rank, kind, reason: faults.append((rank, kind, reason)), pytest.fail)
        connection = emulation._connections[0]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection.ours.close()
        connection.ours = ours
        with theirs:
            for message, body in messages:
                theirs.sendall(framing.pack_header(message.to_bytes(), len(body)) + body)
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
    return replace(FIRST, **changes)


def test_what_our_backend_sends_has_no_fault(faults):
    steps = [Step(WAIT, 1), Step("to host", 1), *[Step("write local", 1, lane=str(lane)) for lane in range(999)]]
    assert faults((FIRST, bytes(4)), (Blocked((1,), False, steps), b""), (Left(), b"")) == []


@pytest.mark.parametrize(
    ("posted", "body", "words"),
    [
        (changed(op="juggle"), bytes(4), "there is no operation 'juggle' with the reduction 'SUM'"),
        (changed(reduction="JUGGLE"), bytes(4), "there is no operation 'all_reduce' with the reduction 'JUGGLE'"),
        (changed(ranks=None), bytes(4), "a call names the group '0' before a message has listed its ranks"),
        (changed(ranks=(0, 9)), bytes(4), r"rank 0 called all_reduce in the group \(0, 9\), which"),
        (changed(ranks=(1,)), bytes(4), r"rank 0 called all_reduce in the group \(1,\), which"),
        (changed(ranks=(0, 0)), bytes(4), r"rank 0 called all_reduce in the group \(0, 0\), which"),
        (changed(op="send", peer=0), bytes(4), "rank 0 called send with rank 0, which is not another"),
        (changed(op="send", peer=5), bytes(4), "rank 0 called send with rank 5, which is not another"),
        (changed(number=2), bytes(4), "the post has number 2; expected 1"),
        (changed(num_items=3), bytes(4), "4 bytes cannot hold 3 items"),
        (changed(num_items=0), bytes(4), "4 bytes cannot hold 0 items"),
        (Blocked((1,)), b"", "a wait names post 1, but the rank has made 0 posts"),
        (Awaited(1, 1, 1.0), b"", "a wait names post 1, but the rank has made 0 posts"),
        (Awaited(2, 0, 1.0), b"", "the post has number 2; expected 1"),
        (Left(steps=[Step(WAIT, 1)]), b"", "a wait names post 1, but the rank has made 0 posts"),
        (Left(steps=[Step("write", 1)]), b"", "dgx-h100 has no shared storage; give shared_storage="),
        (
            Left(steps=[Step("read local", 1, lane=str(lane)) for lane in range(1_001)]),
            b"",
            "more than 1,000 lanes for transfers",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_cannot_be_is_a_fault_of_its_rank(faults, posted, body, words):
    ((rank, kind, reason),) = faults((posted, body))
    assert (rank, kind) == (0, "broken message") and re.search(words, reason), reason
