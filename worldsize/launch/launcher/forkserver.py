"""The launcher's side of a forkserver: starts it, asks it for ranks, learns how they end."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from worldsize import framing
from worldsize.launch.launcher.scratch import ScratchFolder
from worldsize.launch.protocol.messages import Exited, Fork, Forked, Kill, Sweep, Swept, Warm
from worldsize.message import AnyMessage, Message, pack_and_send, read

_CHUNK = 1 << 16
FromForkserver = Warm | Forked | Exited | Swept


class Process(Protocol):
    """What the launcher needs of a started process, such as a `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Forkserver:
    """A warm process that forks ranks; `start(fd)` starts it, by default on this machine as this user."""

    def __init__(self, start: Callable[[int], Process] | None = None, scratch: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.owner_pid = os.getpid()
        self.is_local = start is None
        self._own_scratch = None if scratch else ScratchFolder()
        self.scratch = self._own_scratch.path if self._own_scratch else str(scratch)
        self.socket = ours
        self._inbox = framing.Inbox(max_body_bytes=0)
        self.process = (start or _start_here)(theirs.fileno())
        theirs.close()
        self._warm = False
        self.num_gpus = 0  # known once it is warm

    def wait_until_warm(self, timeout_s: float = 120) -> None:
        """Return once the forkserver has imported torch.

        Raises:
            RuntimeError: it ended or did not answer in time.
        """
        if self._warm:
            return
        try:
            self.num_gpus = self._await(Warm, timeout_s).num_gpus
        except (OSError, ValueError):
            self.close()
            raise RuntimeError("the process that starts ranks did not start; its output is above") from None
        self._warm = True

    @property
    def is_alive(self) -> bool:
        """True while the process runs and belongs to this process, not to one that this process was forked from."""
        return self.process.poll() is None and self.owner_pid == os.getpid()

    def fork(self, job: int, control_fd: int, output_fd: int) -> None:
        """Ask for one rank that communicates over `control_fd` and prints to `output_fd`."""
        self._send(Fork(job), [control_fd, output_fd])

    def kill(self, jobs: list[int]) -> None:
        """Ask for these ranks to be killed; their ends are reported like any other."""
        with contextlib.suppress(OSError):
            self._send(Kill(jobs))

    def sweep(self, kept: str = "", timeout_s: float = 20) -> None:
        """Remove whatever ranks have left in a jail, processes and files but `kept` in /tmp; return when it is done.

        Raises:
            OSError: the forkserver ended or did not answer in time.
            ValueError: it sent something other than a message.
        """
        self._send(Sweep(kept))
        self._await(Swept, timeout_s)

    def receive(self) -> Iterator[FromForkserver]:
        """The messages that have come, waiting for the first bytes if there are none.

        Raises:
            ConnectionError: the forkserver has ended.
            ValueError: it sent something other than a message.
        """
        with self._in_step():
            data = self.socket.recv(_CHUNK)
            headers = [header for header, _ in self._inbox.feed(data)]
        if not data:
            raise ConnectionError("the process that starts ranks has ended")
        for header in headers:
            yield read(header, Warm, Forked, Exited, Swept)

    def _await(self, wanted: type[AnyMessage], timeout_s: float) -> AnyMessage:
        """The first message of a kind, passing over others.

        Raises:
            OSError: it did not come.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                self.socket.settimeout(left_s)
                for message in self.receive():
                    if isinstance(message, wanted):
                        return message
        finally:
            with contextlib.suppress(OSError):  # closed meanwhile
                self.socket.settimeout(None)
        raise TimeoutError("the process that starts ranks did not answer in time")

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        with self._in_step():
            pack_and_send(self.socket, message, fds=fds)

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """Close the forkserver if Ctrl-C interrupts the block: half a message would spoil all that follow."""
        try:
            yield
        except KeyboardInterrupt:
            self.close()
            raise

    def close(self) -> None:
        """End the forkserver and every rank that it still has."""
        self.socket.close()
        if self.owner_pid != os.getpid():
            return
        if not self._warm:
            self.process.terminate()  # it does not listen yet
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._own_scratch:
            self._own_scratch.remove()
            self._own_scratch = None


_shared: Forkserver | None = None
_lock = threading.Lock()


def shared() -> Forkserver:
    """The forkserver of this process, warm; started if it is not there yet, and ended with the process."""
    global _shared
    with _lock:
        if _shared is not None and not _shared.is_alive:
            atexit.unregister(_shared.close)
            _shared.close()
            _shared = None
        server = _shared or _start()
        server.wait_until_warm()
        return server


def start_early() -> None:
    """Start the forkserver of a notebook's kernel without waiting for it, so that it is warm when the first run comes.

    Elsewhere do nothing, and in a thread too: the kernel would end the forkserver together with that thread.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if not hasattr(shell, "kernel") or threading.current_thread() is not threading.main_thread():
        return
    with _lock:
        if _shared is None:
            _start()


def _start() -> Forkserver:
    global _shared
    _shared = Forkserver()
    atexit.register(_shared.close)
    return _shared


def _start_here(fd: int) -> Process:
    # the kernel watches the thread that forked, and a launcher in a side thread may outlive that thread
    parent = [str(os.getpid())] if threading.current_thread() is threading.main_thread() else []
    return subprocess.Popen(
        [sys.executable, "-m", "worldsize.launch.worker.forkserver_main", str(fd), *parent],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt in the terminal goes to the launcher only
    )
