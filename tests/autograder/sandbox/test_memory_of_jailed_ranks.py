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
ORPHAN = f"filled = b'x' * {SIZE}; print('full', flush=True); import time; time.sleep(60)"


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
    parent = os.fork()
    if parent == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=writing)
        os._exit(0)
    os.waitpid(parent, 0)
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
