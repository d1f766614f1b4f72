import json
import os
import socket
import struct
import threading

import psutil
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
    return framing.pack_header(json.dumps(header).encode(), len(body)) + body


def test_a_message_arrives_with_its_fields_and_its_body(pair):
    framing.send(pair[0], "done", b"\0body", rank=3, spans=[["é", 1.5]])
    header, body, files = framing.receive(pair[1])
    assert framing.read_fields(header) == {"kind": "done", "rank": 3, "spans": [["é", 1.5]]}
    assert (body, files) == (b"\0body", [])


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
    pair[0].sendall(message({"kind": "done"}, b"four")[:-2])
    pair[0].close()
    with pytest.raises(ConnectionError, match="closed in the middle of a message"):
        framing.receive(pair[1])
    assert framing.receive(pair[1]) is None


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ((2, LIMIT + 1), f"the message has {LIMIT + 1} bytes; the limit is {LIMIT}"),
        ((2, (1 << 64) - 1), f"the message has {(1 << 64) - 1} bytes; the limit is {LIMIT}"),
        ((LIMIT + 1, 0), f"the header has {LIMIT + 1} bytes; the limit is {LIMIT}"),
    ],
)
def test_receive_takes_nothing_beyond_its_limits(pair, lengths, words):
    pair[0].sendall(struct.pack("<IQ", *lengths))
    with pytest.raises(ValueError, match=words):
        framing.receive(pair[1], max_body_bytes=LIMIT, max_header_bytes=LIMIT)


def test_files_of_a_message_that_cannot_be_read_are_closed(pair):
    with open(os.devnull) as file:
        before = psutil.Process().num_fds()
        socket.send_fds(pair[0], [struct.pack("<IQ", 2, LIMIT + 1)], [file.fileno()])
        with pytest.raises(framing.TooLong):
            framing.receive(pair[1], max_body_bytes=LIMIT)
        assert psutil.Process().num_fds() == before


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=30), max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_an_inbox_gives_each_message_once_however_the_bytes_are_cut(bodies, lengths):
    stream = b"".join(message({"kind": "k"}, body) for body in bodies)
    inbox, came, at, turn = Inbox(LIMIT), [], 0, 0
    while at < len(stream):
        length = lengths[turn % len(lengths)]
        came += inbox.feed(stream[at : at + length])
        at, turn = at + length, turn + 1
    assert [body for _, body in came] == bodies


def test_an_inbox_takes_a_body_of_exactly_its_limit():
    assert Inbox(LIMIT).feed(message({}, b"x" * LIMIT)) == [(b"{}", b"x" * LIMIT)]


@pytest.mark.parametrize(
    "header", [b"", b"[1]", b"not json", b"\xff\xfe", b"[" * 100_000, b"3"], ids=lambda it: ascii(it[:9])
)
def test_what_is_not_named_fields_is_refused(header):
    with pytest.raises(ValueError):  # noqa: PT011  # in the words of json, of codecs or of framing
        framing.read_fields(header)


@pytest.mark.parametrize("lengths", [(0, LIMIT + 1), ((8 << 20) + 1, 0), ((1 << 32) - 1, (1 << 64) - 1)])
def test_an_inbox_refuses_a_long_message_before_it_has_come(lengths):
    inbox = Inbox(LIMIT)
    with pytest.raises(ValueError, match="the limit is"):
        inbox.feed(struct.pack("<IQ", *lengths))
