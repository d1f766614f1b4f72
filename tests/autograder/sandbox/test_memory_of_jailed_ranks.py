"""What ranks in a jail fill, as the kernel says: also files in memory and processes without a parent."""

import sys

import cloudpickle
import pytest
from launching import run
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


def little():
    return 0


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
