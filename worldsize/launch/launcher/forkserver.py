"""The launcher's side of a nursery: starts it, asks it for ranks, hears how they end."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Protocol

from worldsize import framing


class Process(Protocol):
    """What is asked of a started process; a `subprocess.Popen` has it all."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Nursery:
    """A warm process that forks ranks; `start(fd)` starts it, by default on this machine as this user."""

    def __init__(self, start: Callable[[int], Process] | None = None, scratch: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.owner_pid = os.getpid()
        self.is_local = start is None
        self._scratch = None if scratch else tempfile.mkdtemp(prefix="worldsize-")
        self.scratch = scratch or str(self._scratch)
        self.socket = ours
        self.process = (start or _start_here)(theirs.fileno())
        theirs.close()
        self._warm = False
        self.num_gpus = 0  # known once it is warm

    def wait_until_warm(self, timeout_s: float = 120) -> None:
        """Nothing, once the nursery has imported torch.

        Raises:
            RuntimeError: it ended or did not answer in time.
        """
        if self._warm:
            return
        self.socket.settimeout(timeout_s)
        try:
            message = framing.receive(self.socket)
        except TimeoutError:
            message = None
        if message is None or message[0]["kind"] != "warm":
            self.close()
            raise RuntimeError("the process that starts ranks did not come up; its own message stands above")
        self.socket.settimeout(None)
        self.num_gpus = int(message[0]["num_gpus"])
        self._warm = True

    @property
    def is_alive(self) -> bool:
        """True while the process runs and belongs to this process, not to one that this process was forked from."""
        return self.process.poll() is None and self.owner_pid == os.getpid()

    def fork(self, job: int, control_fd: int, output_fd: int) -> None:
        """Asks for one rank that talks on `control_fd` and prints to `output_fd`."""
        framing.send(self.socket, "fork", fds=[control_fd, output_fd], job=job)

    def kill(self, jobs: list[int]) -> None:
        """Asks for these ranks to be killed; their ends are reported like any other."""
        with contextlib.suppress(OSError):
            framing.send(self.socket, "kill", jobs=jobs)

    def sweep(self, timeout_s: float = 20) -> None:
        """Removes whatever ranks have left in a jail, processes and files; returns when it is done.

        Raises:
            OSError: the nursery ended or did not answer in time.
        """
        self.socket.settimeout(timeout_s)
        framing.send(self.socket, "sweep")
        while (message := framing.receive(self.socket)) is None or message[0]["kind"] != "swept":
            if message is None:
                raise ConnectionError("the process that starts ranks has ended")
        self.socket.settimeout(None)

    def close(self) -> None:
        """Ends the nursery and every rank that it still has."""
        self.socket.close()
        if self.owner_pid != os.getpid():
            return
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


_shared: Nursery | None = None
_lock = threading.Lock()


def shared() -> Nursery:
    """The nursery of this process, started at its first use and ended with the process."""
    global _shared
    with _lock:
        if _shared is None or not _shared.is_alive:
            if _shared is not None:
                atexit.unregister(_shared.close)
                _shared.close()
            _shared = Nursery()
            atexit.register(_shared.close)
        _shared.wait_until_warm()
        return _shared


def _start_here(fd: int) -> Process:
    # a launcher in a side thread may outlive that thread, and the kernel watches threads
    parent = [str(os.getpid())] if threading.current_thread() is threading.main_thread() else []
    return subprocess.Popen(
        [sys.executable, "-m", "worldsize.launch.worker.forkserver_main", str(fd), *parent],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt in the terminal is the launcher's to handle
    )
