"""A preloaded process from which jails and judges are forked, so that torch is imported only once.

It runs with a jail's environment. It never holds hidden checks or the judge's environment: a judge reads them after the
fork, and jails are forked from here, not from judges.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from autograder.sandbox import gpus, jail
from worldsize import framing
from worldsize.launch.protocol.process import die_with_parent
from worldsize.launch.worker import fork_source, forkserver_main

PRELOAD = (
    "autograder.judging.judge.student",
    "autograder.judging.judge.main",
    "worldsize.launch.launcher.forked",
    *("worldsize.calibrate", "worldsize.comparing", "worldsize.paper", "worldsize.planning"),  # what `worldsize` offers
)
_PROGRAM = "import sys; from autograder.sandbox import zygote; zygote.main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])"
_NOT_FOR_RANKS = ("autograder", "pytest", "_pytest")
_QUIET = ["-p", "no:cacheprovider", "-c", os.devnull]
_WARM_S = 180  # time limit of the imports
_END_S = 2  # time limit for a judge or a jail to end
_AHEAD = 20  # steps of nice, if this process runs as root
ENV = {
    "PATH": "/usr/bin:/bin",
    "HOME": jail.HOME,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


class ForkedProcess:
    """A process forked by the zygote, held by a pidfd, which stays its own when its number is reused."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self._fd = pid, fd

    def poll(self) -> int | None:
        """0 if it has ended, in whatever way; None while it runs."""
        return 0 if self._fd < 0 or select.select([self._fd], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return 0.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        if self._fd >= 0 and not select.select([self._fd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.close()
        return 0

    def terminate(self) -> None:
        """Ask it to end, if it still runs."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, if it still runs."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        """Close the handle without ending the process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Zygote:
    """The client's side of the zygote; any thread may use it."""

    def __init__(self, sock: socket.socket, scratch: str, process: subprocess.Popen[bytes] | None = None) -> None:
        self._sock, self._process = sock, process
        self.scratch = scratch  # removed when the zygote ends, even if its owner was killed
        self._lock = threading.Lock()
        self.owner_pid = os.getpid()

    @staticmethod
    def start(preload: Sequence[str]) -> Zygote:
        """Start a zygote and wait until its modules are imported.

        Raises:
            RuntimeError: it did not start.
        """
        ours, theirs = socket.socketpair()
        scratch = tempfile.mkdtemp(prefix="worldsize-zygote-")
        os.chmod(scratch, 0o711)  # a jail with its own user must reach its folder; other jails cannot open it
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), scratch, *preload],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**ENV, **_search_path()},
            start_new_session=True,
        )
        theirs.close()
        zygote = Zygote(ours, scratch, process)
        ours.settimeout(_WARM_S)
        try:
            is_warm = framing.receive(ours) is not None
        except (TimeoutError, ConnectionError):
            is_warm = False
        if not is_warm:
            zygote.close()
            raise RuntimeError("the process from which jails and judges are forked did not start; its output is above")
        ours.settimeout(None)
        return zygote

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests; always false in a fork of the process that it belongs to."""
        return self.owner_pid == os.getpid() and (self._process is None or self._process.poll() is None)

    def jail(self, plan: Mapping[str, Any], forkserver_fd: int) -> ForkedProcess:
        """A forkserver in a jail that is built to the plan; it communicates over `forkserver_fd`."""
        return self._ask("jail", [forkserver_fd], plan=dict(plan))

    def call(self, function: str, args: Sequence[str], env: Mapping[str, str], output_fd: int) -> ForkedProcess:
        """A process that calls a function, such as "autograder.judging.judge.main:main", and may ask for jails itself.

        It prints to `output_fd` and shares this process's working directory.
        """
        fields = {"function": function, "args": list(args), "env": dict(env), "cwd": os.getcwd()}
        with tempfile.TemporaryFile() as request:  # read only by the fork, because jails inherit the zygote's memory
            request.write(json.dumps(fields).encode())
            request.seek(0)
            return self._ask("call", [output_fd, request.fileno()])

    def _ask(self, kind: str, fds: list[int], **wanted: Any) -> ForkedProcess:
        with self._lock:
            framing.send(self._sock, kind, json.dumps(wanted).encode(), fds=fds)
            answer = framing.receive(self._sock)
        if answer is None:
            raise RuntimeError("the process from which jails and judges are forked has ended")
        fields = framing.read_fields(answer[0])
        if fields["kind"] == "refused":
            reason = f"this machine has no room for another process ({fields['reason']})"
            raise RuntimeError(f"{reason}; judge fewer at once (--jobs)")
        return ForkedProcess(fields["pid"], answer[2][0])

    def close(self) -> None:
        """End the zygote and every jail and judge forked from it."""
        self._sock.close()
        if self._process and self.owner_pid == os.getpid():
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self.scratch, ignore_errors=True)


_shared: dict[tuple[str, ...], Zygote] = {}
_lock = threading.Lock()


def shared(preload: Sequence[str] = ()) -> Zygote:
    """The zygote of this process for these modules, started on first use and ended with the process."""
    with _lock:
        key = tuple(sorted(preload))
        zygote = _shared.get(key) or _shared.get(("*",))
        if zygote is None or not zygote.is_alive:
            zygote = _shared[key] = Zygote.start(key)
            atexit.register(zygote.close)
        return zygote


def end_all() -> None:
    """End every jail and judge of this process, at once."""
    with _lock:
        for zygote in _shared.values():
            zygote.close()
        _shared.clear()


def _search_path() -> dict[str, str]:
    """Environment variables with this process's search paths for the course's packages and a GPU's driver."""
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "LD_LIBRARY_PATH": os.pathsep.join(gpus.library_path())}
    return {name: path for name, path in paths.items() if path}


# the process itself


def main(fd: int, scratch: str, preload: Sequence[str]) -> None:
    """Serve until the process that started it closes its connection."""
    for name in (*forkserver_main.PRELOAD, *PRELOAD, *preload):
        importlib.import_module(name)
    importlib.import_module("pytest").main(["--version", *_QUIET])  # imports pytest's own plugins
    importlib.import_module("autograder.sandbox").probe()  # caches the answer for all judges
    fork_source.prepare()
    sock = socket.socket(fileno=fd)
    framing.send(sock, "warm")
    server = _Server(sock, scratch, _raise_priority())
    try:
        server.serve()
    finally:
        server.end()
        os._exit(0)


def _raise_priority() -> int:
    """Raise the priority of judges and forkservers, and return by how much ranks must lower it again.

    Otherwise a fork bomb would leave hardly any CPU time to the processes that must end it.
    """
    with contextlib.suppress(PermissionError):
        os.nice(-_AHEAD)
        return _AHEAD
    return 0


class _Server:
    def __init__(self, sock: socket.socket, scratch: str, ahead: int) -> None:
        self._first, self._scratch, self._ahead = sock, scratch, ahead
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, socket.socket):
                    if not self._serve_request(key.fileobj):
                        return
                else:
                    self._reap(key)

    def end(self) -> None:
        """End every forked process, then remove the scratch folder in case the owner was killed."""
        forked = [key for key in self._selector.get_map().values() if not isinstance(key.fileobj, socket.socket)]
        for key in forked:
            signal.pidfd_send_signal(key.fd, signal.SIGTERM)  # on SIGTERM, a jail ends the processes in it
        for key in forked:
            if not select.select([key.fd], [], [], _END_S)[0]:
                signal.pidfd_send_signal(key.fd, signal.SIGKILL)
            os.waitpid(key.data, 0)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _serve_request(self, sock: socket.socket) -> bool:
        try:
            message = framing.receive(sock)
        except ConnectionError:
            message = None
        if message is None:
            self._selector.unregister(sock)
            sock.close()
            return sock is not self._first
        header, body, fds = message
        with contextlib.suppress(ConnectionError):  # the client may have been killed; then the new process ends too
            try:
                pid = self._fork(framing.read_fields(header)["kind"], json.loads(body), fds)
            except OSError as error:  # no more processes possible, but no reason to end the others
                framing.send(sock, "refused", reason=str(error))
            else:
                handle = os.pidfd_open(pid)  # valid even if it has ended, because it is reaped only after this
                self._selector.register(handle, selectors.EVENT_READ, pid)
                framing.send(sock, "forked", fds=[handle], pid=pid)
        for fd in fds:
            os.close(fd)
        return True

    def _reap(self, ended: selectors.SelectorKey) -> None:
        self._selector.unregister(ended.fileobj)
        os.waitpid(ended.data, 0)
        os.close(ended.fd)

    def _fork(self, kind: str, fields: dict[str, Any], fds: Sequence[int]) -> int:
        line = socket.socketpair() if kind == "call" else None  # for its requests for jails
        zygote_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            for end in line or ():
                end.close()
            raise
        if pid == 0:
            try:
                die_with_parent(zygote_pid)
                if line is None:
                    _become_jail(fields["plan"], fds[0], self._ahead)
                else:
                    _become_caller(fds[0], fds[1], line[1], self._scratch)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)
        if line is not None:
            line[1].close()
            self._selector.register(line[0], selectors.EVENT_READ)
        return pid


def _become_jail(plan: dict[str, Any], fd: int, ahead: int) -> None:
    """Wait outside the jail for the forkserver inside, which dies with this process."""
    _keep_only([fd])
    inside = jail.isolate(plan)
    if inside:
        os.close(fd)
        jail.wait_for_end(inside, plan)
        os._exit(0)
    for name in [name for name in sys.modules if name.partition(".")[0] in _NOT_FOR_RANKS]:
        del sys.modules[name]  # they hold no secrets, and students do not need them
    forkserver_main.serve(fd, ahead)


def _become_caller(output_fd: int, request_fd: int, line: socket.socket, scratch: str) -> None:
    with open(request_fd, closefd=False) as request:
        fields = json.load(request)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    _keep_only([line.fileno()])
    os.environ.clear()
    os.environ.update(fields["env"])
    os.chdir(fields["cwd"])
    _shared.clear()
    _shared["*",] = Zygote(line, scratch)
    module, name = fields["function"].split(":")
    getattr(importlib.import_module(module), name)(*fields["args"])
    sys.stdout.flush()
    os._exit(0)


def _keep_only(fds: Sequence[int]) -> None:
    """Close every file except these and the standard streams."""
    at = 3
    for fd in sorted(fds):
        os.closerange(at, fd)
        at = fd + 1
    os.closerange(at, os.sysconf("SC_OPEN_MAX"))
