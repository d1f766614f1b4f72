"""The launcher's side of a forkserver: starts it, requests ranks, receives their exit statuses."""

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
    """The part of `subprocess.Popen` that the launcher needs."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Forkserver:
    """A process that has imported torch and forks ranks; `start(fd)` starts it, by default as this user."""

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
        self.num_gpus = 0  # known once the forkserver is warm

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
        """Whether the forkserver runs and was started by this process rather than by one it was forked from."""
        return self.process.poll() is None and self.owner_pid == os.getpid()

    def fork(self, job: int, control_fd: int, output_fd: int) -> None:
        """Request one rank that communicates over `control_fd` and prints to `output_fd`."""
        self._send(Fork(job), [control_fd, output_fd])

    def kill(self, jobs: list[int]) -> None:
        """Request that the ranks of these jobs be killed; their exits are reported as usual."""
        with contextlib.suppress(OSError):
            self._send(Kill(jobs))

    def sweep(self, kept: str = "", timeout_s: float = 20) -> None:
        """Remove the processes and files that ranks left in a jail, except `kept` in /tmp; return when it is done.

        Raises:
            OSError: the forkserver ended or did not answer in time.
            ValueError: it sent something other than a message.
        """
        self._send(Sweep(kept))
        self._await(Swept, timeout_s)

    def receive(self) -> Iterator[FromForkserver]:
        """Yield the messages received, waiting for the first bytes if there are none.

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
        """Return the first message of type `wanted`, ignoring others.

        Raises:
            OSError: it did not arrive in time.
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
        """Close the forkserver if Ctrl-C interrupts the block: half a message would corrupt those that follow."""
        try:
            yield
        except KeyboardInterrupt:
            self.close()
            raise

    def close(self) -> None:
        """End the forkserver and its remaining ranks."""
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
    """Return this process's warm forkserver, which is started on first use and ends with the process."""
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

    Do nothing outside a notebook or in a side thread, whose end would make the operating system kill the forkserver.
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
    # the operating system watches the thread that forked, and the launcher may outlive a side thread
    parent = [str(os.getpid())] if threading.current_thread() is threading.main_thread() else []
    return subprocess.Popen(
        [sys.executable, "-m", "worldsize.launch.worker.forkserver_main", str(fd), *parent],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt in the terminal goes to the launcher only
    )
