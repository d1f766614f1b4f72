import json
import os
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize import framing
from worldsize.framing import Inbox

LIMIT = 1000


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def message(header, body=b""):
    """A message's bytes, with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_a_message_arrives_with_its_fields_and_its_body(pair):
    framing.send(pair[0], "done", b"\0body", rank=3, spans=[["é", 1.5]])
    assert framing.receive(pair[1]) == (
        {"kind": "done", "size": 5, "rank": 3, "spans": [["é", 1.5]]},
        b"\0body",
        [],
    )


def test_open_files_travel_with_a_message(pair):
    reader, writer = os.pipe()
    framing.send(pair[0], "fork", fds=[writer], job=1)
    _, _, (came,) = framing.receive(pair[1])
    os.write(came, b"through")
    assert os.read(reader, 100) == b"through"
    for fd in (reader, writer, came):
        os.close(fd)


def test_a_body_larger_than_any_socket_buffer_arrives_whole(pair):
    body = os.urandom(1 << 20) * 5
    sender = threading.Thread(target=framing.send, args=(pair[0], "done", body))
    sender.start()
    received = framing.receive(pair[1])
    sender.join()
    assert received is not None and received[1] == body


def test_a_closed_end_is_none_between_messages_and_an_error_within_one(pair):
    pair[0].sendall(message({"kind": "done", "size": 4}, b"ab"))
    pair[0].close()
    with pytest.raises(ConnectionError, match="closed in the middle of a message"):
        framing.receive(pair[1])
    assert framing.receive(pair[1]) is None


@pytest.mark.parametrize("size", [LIMIT + 1, -1])
def test_receive_takes_no_body_beyond_its_limit(pair, size):
    pair[0].sendall(message({"kind": "done", "size": size}))
    with pytest.raises(ValueError, match=f"a message of {size} bytes; at most {LIMIT} are taken"):
        framing.receive(pair[1], max_bytes=LIMIT)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=30), max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_an_inbox_gives_each_message_once_however_the_bytes_are_cut(bodies, lengths):
    stream = b"".join(message({"kind": "k", "size": len(body)}, body) for body in bodies)
    inbox, came, at, turn = Inbox(LIMIT), [], 0, 0
    while at < len(stream):
        length = lengths[turn % len(lengths)]
        came += inbox.feed(stream[at : at + length])
        at, turn = at + length, turn + 1
    assert [body for _, body in came] == bodies


def test_an_inbox_takes_a_body_of_exactly_its_limit():
    assert Inbox(LIMIT).feed(message({"size": LIMIT}, b"x" * LIMIT)) == [({"size": LIMIT}, b"x" * LIMIT)]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8,
        message({"kind": "done", "size": LIMIT + 1}),
        message({"kind": "done", "size": -1}),
        message({"kind": "done", "size": "5"}),
        message({"kind": "done", "size": 1e3}),
        message({"kind": "done"}),
        message([1]),
        message(b"not json"),
        message(b"\xff\xfe"),
        message(b"[" * 100_000),
    ],
    ids=lambda data: ascii(data[8:50]),
)
def test_an_inbox_refuses_what_is_not_a_message(data):
    with pytest.raises(ValueError):  # noqa: PT011  # in the words of json, of codecs or of framing
        Inbox(LIMIT).feed(data)


def test_an_inbox_refuses_a_long_message_before_it_has_come():
    inbox = Inbox(LIMIT)
    with pytest.raises(ValueError, match="at most"):
        inbox.feed((1 << 30).to_bytes(8, "little"))


def test_a_header_is_read_once_however_slowly_its_body_comes(monkeypatch):
    read, loads = [], framing.json.loads
    monkeypatch.setattr(framing.json, "loads", lambda text: read.append(1) or loads(text))
    inbox = framing.Inbox(max_bytes=100)
    data = framing.pack("done", b"x" * 50) + framing.pack("done", b"y")
    messages = [message for byte in data for message in inbox.feed(bytes([byte]))]
    assert ([body for _, body in messages], len(read)) == ([b"x" * 50, b"y"], 2)
