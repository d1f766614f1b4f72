"""A process that has imported torch and forks ranks from itself, so that a rank starts in milliseconds.

Run as `python -m worldsize.launch.worker.forkserver_main FD [PARENT_PID]`; it and its ranks end when the other end
of FD closes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback

from worldsize import framing
from worldsize.launch.protocol.messages import Exited, Fork, Forked, Kill, Sweep, Swept, Warm
from worldsize.launch.protocol.process import die_with_parent, hide_memory
from worldsize.launch.worker import fork_source
from worldsize.launch.worker import main as worker
from worldsize.message import pack_and_send, read

# the first optimizer constructor imports torch._dynamo, which takes 1.3 s
PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "torch.distributed.tensor.experimental",
    "torch.utils.serialization.config",  # sending tensors imports these two, otherwise again in every rank
    "numpy.ctypeslib",
    "safetensors.torch",
    "cloudpickle",
    "worldsize.emulate.worker.backend",
)


def main(fd: int, parent_pid: int | None) -> None:
    """Serve fork and kill requests until the launcher hangs up."""
    if parent_pid is not None:
        # by SIGTERM, so that it can still end the processes that ranks started
        die_with_parent(parent_pid, signal.SIGTERM)
    for name in (*PRELOAD, *filter(None, os.environ.get("WORLDSIZE_PRELOAD", "").split(","))):
        importlib.import_module(name)
    fork_source.prepare()
    serve(fd)


def serve(fd: int, ahead: int = 0) -> None:
    """Serve in a process that has imported all that ranks may need; never return.

    Ranks have a nice value `ahead` above this process's, which must be scheduled however many processes they start.
    """
    if os.getpid() == 1:
        hide_memory()  # from jailed ranks, which run as the same user
    sock = socket.socket(fileno=fd)
    pack_and_send(sock, Warm(_count_gpus()))
    _Forkserver(sock, ahead).serve()
    os._exit(0)  # the interpreter would take most of a second to tear torch down


def _count_gpus() -> int:
    """Count the CUDA devices in a separate process: after asking the driver, a process cannot fork ranks."""
    import torch

    if torch.version.cuda is None:
        return 0
    pid = os.fork()
    if pid == 0:
        count = 0
        with contextlib.suppress(BaseException):
            count = torch.cuda.device_count()
        os._exit(min(count, 255))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class _Forkserver:
    def __init__(self, sock: socket.socket, ahead: int) -> None:
        self._sock, self._ahead = sock, ahead
        self._jobs: dict[int, int] = {}  # pid -> job
        # the folders that jailed ranks can write to, with their contents before the first rank
        writable = ("/dev/shm", "/tmp", os.getcwd()) if os.getpid() == 1 else ()
        self._kept = {folder: set(os.listdir(folder)) for folder in writable}
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._must_end = False
        signal.signal(signal.SIGTERM, self._note_term)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def serve(self) -> None:
        self._selector.register(self._sock, selectors.EVENT_READ, self._handle_request)
        self._selector.register(self._wake_r, selectors.EVENT_READ, self._reap)
        try:
            with contextlib.suppress(ConnectionError):  # the launcher is gone
                while all(key.data() for key, _ in self._selector.select()):
                    pass
        finally:
            for pid in self._jobs:
                _end(pid)

    def _note_term(self, *_: object) -> None:
        self._must_end = True  # an exception here could interrupt the killing of ranks

    def _handle_request(self) -> bool:
        message = framing.receive(self._sock)
        if message is None:
            return False
        header, _, fds = message
        match read(header, Fork, Kill, Sweep):
            case Fork(job):
                self._fork(job, *fds)
            case Kill(jobs):
                for pid in [pid for pid, job in self._jobs.items() if job in jobs]:
                    _end(pid)
            case Sweep(kept):
                if os.getpid() == 1:
                    self._sweep({kept})
        return True

    def _fork(self, job: int, control_fd: int, output_fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # so that the processes that the rank starts can be killed with it
            os.nice(self._ahead)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._selector.close()  # otherwise a rank could add files to the forkserver's selector
            for fd in (self._sock.fileno(), self._wake_r, self._wake_w):
                os.close(fd)
            try:
                worker.main(socket.socket(fileno=control_fd), output_fd)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # a rank must never return into the forkserver's loop
        os.close(control_fd)
        os.close(output_fd)
        self._jobs[pid] = job
        pack_and_send(self._sock, Forked(job, pid))

    def _reap(self) -> bool:
        os.read(self._wake_r, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                self._note_end(*ended)
        return not self._must_end

    def _note_end(self, pid: int, status: int) -> None:
        if pid in self._jobs:  # in a jail, a rank's orphans are reaped here too
            _end_group(pid)
            pack_and_send(self._sock, Exited(self._jobs.pop(pid), status))

    def _sweep(self, spared: set[str]) -> None:
        """Remove all that ranks left but these names in /tmp; for a jail's first process, which adopts orphans."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                self._note_end(*os.waitpid(-1, 0))
        kept_in = {folder: kept | spared if folder == "/tmp" else kept for folder, kept in self._kept.items()}
        for folder, kept in kept_in.items():
            _empty(folder, kept)
        if any(set(os.listdir(folder)) - kept for folder, kept in kept_in.items()):
            os._exit(1)  # too deep, or unreadable even for its owner: end the whole jail with its contents
        pack_and_send(self._sock, Swept())


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _end_group(pid)


def _end_group(pid: int) -> None:
    """Kill the processes in a rank's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _empty(folder: str, kept: set[str]) -> None:
    """Remove what can be removed from a folder; a submission may have tried to prevent this."""
    for name in set(os.listdir(folder)) - kept if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, RecursionError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
