"""Requests of a process to the kernel: to die with its parent, to hide its memory from its siblings."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time

AGENT_PID = "WORLDSIZE_AGENT_PID"  # the process with which a rank under torchrun ends
SOCKET = "WORLDSIZE_SOCKET"  # the path at which the launcher listens for that rank
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
NETWORKS = "/var/run/netns"  # where `ip netns add` keeps network namespaces, by name
_CLONE_NEWNET = 0x40000000


def die_with_parent(parent_pid: int | None = None, signal_number: int = signal.SIGKILL) -> None:
    """Ask the Linux kernel to signal this process when the thread that forked it ends.

    `parent_pid` closes the race with a parent that has already died: if it is not the parent, this process exits.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def draw_afresh() -> None:
    """Reseed the global generators of Python and NumPy, because otherwise all forks would draw the same numbers.

    Leave torch's generator alone: its default seed is the same constant in every process.
    """
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def end_own_group() -> None:
    """Kill this process and its process group, if it leads the group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def hide_memory() -> None:
    """Prevent processes of the same user from reading this process's memory or tracing it; forks inherit this."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def enter_network(name: str) -> None:
    """Move this thread and those it will start into a network namespace made with `ip netns add`; Linux only.

    Raises:
        OSError: the namespace does not exist, or this process is not root.
    """
    fd = os.open(os.path.join(NETWORKS, name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(fd)


def exit_at_eof(fd: int) -> None:
    """End this process once the other end of `fd` is closed, as it is on every system when its owner dies.

    Send SIGTERM first, and give the process a second to handle it.
    """

    def watch() -> None:
        while os.read(fd, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()
