"""What a process asks of the kernel for itself: to die with its parent, to be closed to its siblings."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time

AGENT_PID = "WORLDSIZE_AGENT_PID"  # a rank under torchrun ends with this process
SOCKET = "WORLDSIZE_SOCKET"  # where the launcher listens for that rank
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
NETWORKS = "/var/run/netns"  # where `ip netns add` keeps network namespaces, by name
_CLONE_NEWNET = 0x40000000


def die_with_parent(parent_pid: int | None = None, signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel, which must be Linux, to signal this process when the thread that forked it ends.

    `parent_pid` closes the race with a parent that died first: if it is no longer the parent, this process exits.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def draw_afresh() -> None:
    """Reseed the global generators of Python and NumPy, because forks would all draw the same numbers.

    Torch's generator stays, because its seed is a constant in every process.
    """
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def end_own_group() -> None:
    """Kill this process and all that it has started, if it leads its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def hide_memory() -> None:
    """Keep processes of the same user from reading this one's memory or tracing it; its forks inherit that."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def enter_network(name: str) -> None:
    """Move this thread, and those that it will start, into a network namespace that `ip netns` knows; Linux only.

    Raises:
        OSError: there is no such namespace, or this process is not root.
    """
    fd = os.open(os.path.join(NETWORKS, name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # Python has os.setns from 3.12 on
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(fd)


def exit_at_eof(fd: int) -> None:
    """End this process once the other end of `fd` is closed, which its owner's death causes on every system.

    SIGTERM comes first, and the process has a second to handle it.
    """

    def watch() -> None:
        while os.read(fd, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()
