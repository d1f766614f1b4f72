"""The launcher's side of a forkserver, with a stand-in for the process: what it reads, and how it survives Ctrl-C."""

import os

import pytest

from worldsize import framing
from worldsize.launch.launcher.forkserver import Forkserver
from worldsize.launch.protocol.messages import Exited, Forked


class StandIn:
    """A started process of which only the socket is used."""

    pid = 0

    def __init__(self, fd):
        self.fd = os.dup(fd)
        self.has_ended = False

    def poll(self):
        return 0 if self.has_ended else None

    def wait(self, timeout=None):
        self.has_ended = True
        return 0

    def terminate(self):
        self.has_ended = True

    def says(self, data):
        os.write(self.fd, data)


@pytest.fixture
def server(tmp_path):
    made = Forkserver(StandIn, scratch=str(tmp_path))
    yield made
    made.close()
    os.close(made.process.fd)


def test_a_message_in_pieces_is_taken_once_it_is_whole(server):
    data = framing.pack("forked", job=1, pid=7) + framing.pack("exited", job=1, status=9)
    for start in range(0, len(data), 5):
        server.process.says(data[start : start + 5])
    came = []
    while len(came) < 2:
        came += server.receive()
    assert came == [Forked(1, 7), Exited(1, 9)]
    server.process.says(data[:5])
    assert list(server.receive()) == [], "half a message is not waited for"


def test_a_forkserver_whose_message_is_broken_off_is_dropped(server, monkeypatch):
    def interrupted(_data):
        raise KeyboardInterrupt

    server.process.says(framing.pack("warm", num_gpus=0))
    monkeypatch.setattr(server._inbox, "feed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.wait_until_warm()
    assert not server.is_alive, "the next run must start another one"


def test_what_is_not_a_message_is_refused(server):
    server.process.says(framing.pack("forked", job="1", pid=7))
    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$.job`"):
        list(server.receive())
