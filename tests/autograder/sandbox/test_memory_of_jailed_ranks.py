"""What ranks in a jail fill, as the kernel says: also files in memory and processes without a parent."""

import os
import sys

import cloudpickle
import pytest
from launching import run
from needs import give_up
from tiny_lab import needs_jail

from autograder.sandbox import Sandbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = needs_jail
SIZE = 100 * 10**6
# fills its memory once its parent, a copy of the whole rank, is gone and counts no more
ORPHAN = f"""
import sys, time
sys.stdin.read()
filled = b"x" * {SIZE}
print("full", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def jail():
    with Sandbox() as opened:
        opened.forkserver.wait_until_warm()
        yield opened


def tensor():
    import torch

    return float(torch.ones(SIZE // 4).sum()) * 0


def file():
    with open("/tmp/kept", "wb") as kept:
        for _ in range(100):
            kept.write(b"x" * (SIZE // 100))


def orphan():
    import os
    import subprocess
    import sys

    reading, writing = os.pipe()
    until_gone, held_by_parent = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=until_gone, stdout=writing)
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(held_by_parent)
    assert os.read(reading, 4) == b"full"


def pipes_and_sockets():
    import contextlib
    import fcntl
    import os
    import socket

    kept = pipes_and_sockets.kept = []  # type: ignore[attr-defined]
    for _ in range(150):
        (reading, writing), pair = os.pipe(), socket.socketpair()
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
        kept += [reading, *pair]
        for fd, one in ((writing, None), (pair[0].fileno(), pair[0]), (pair[1].fileno(), pair[1])):
            os.set_blocking(fd, False)
            if one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
            with contextlib.suppress(BlockingIOError):
                while True:
                    pipes_and_sockets.num_bytes += os.write(fd, b"x" * 4096)  # type: ignore[attr-defined]
    return pipes_and_sockets.num_bytes  # type: ignore[attr-defined]


pipes_and_sockets.num_bytes = 0  # type: ignore[attr-defined]


def tcp():
    import contextlib
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        pairs = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(100)]
    num_bytes = 0
    for one in [one for pair in pairs for one in pair]:
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                num_bytes += os.write(one.fileno(), b"x" * 65536)
    tcp.kept = pairs  # type: ignore[attr-defined]
    return num_bytes


def little():
    return 0


@pytest.mark.parametrize("fill", [pipes_and_sockets, tcp])
def test_what_a_jailed_rank_keeps_in_the_kernel_is_seen(jail, fill):
    if os.geteuid() != 0 or not jail.tier.namespaces:
        give_up(
            "sandbox", "only root sees which files others have open, and only a network of its own says whose TCP it is"
        )
    try:
        found = run(fill, world_size=1, echo=False, forkserver=jail.forkserver, memory=True)
    finally:
        jail.forkserver.sweep()
    (kept_bytes,), (grown_bytes,) = found.values, found.grown_bytes
    assert SIZE / 5 < kept_bytes <= grown_bytes


@pytest.mark.parametrize("fill", [tensor, file, orphan])
def test_what_a_jailed_rank_fills_is_seen(jail, fill):
    try:
        found = run(fill, world_size=1, echo=False, forkserver=jail.forkserver, memory=True).grown_bytes
    finally:
        jail.forkserver.sweep()
    assert len(found) == 1 and 0.9 * SIZE < found[0] < 1.5 * SIZE  # what joining took may be free again


def test_a_jailed_rank_that_fills_nothing_has_not_grown(jail):
    (found,) = run(little, world_size=1, echo=False, forkserver=jail.forkserver, memory=True).grown_bytes
    assert 0 <= found < 0.2 * SIZE
