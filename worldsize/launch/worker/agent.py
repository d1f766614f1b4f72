"""torchrun's elastic agent in a process that ends with the launcher.

Run as `python -m worldsize.launch.worker.agent PID [FLAGS]`.
With WORLDSIZE_FORK_RANKS in its environment it imports what ranks need once and forks them from itself: a restart then
takes a tenth of a second rather than some seconds of imports.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any

from worldsize.launch.protocol.process import AGENT_PID, die_with_parent, draw_afresh, exit_at_eof
from worldsize.launch.worker import fork_source

FORK_RANKS = "WORLDSIZE_FORK_RANKS"
_PRELOAD = (
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.optim",
    "worldsize.bench",
    "worldsize.launch.worker.torchrun_main",
)
_POLL_S = 0.01


def main() -> None:
    """Run torchrun with the flags that follow the launcher's process ID."""
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)  # on SIGTERM torchrun first ends its ranks
    exit_at_eof(0)
    os.environ[AGENT_PID] = str(os.getpid())
    if os.environ.pop(FORK_RANKS, ""):
        _fork_ranks()
    from torch.distributed.run import main as torchrun_main

    torchrun_main(sys.argv[2:])


def _fork_ranks() -> None:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    for name in _PRELOAD:
        importlib.import_module(name)
    fork_source.prepare()
    SubprocessHandler._popen = lambda self, args, env: ForkedRank(args, env, self._stdout, self._stderr)  # type: ignore


class ForkedRank:
    """A rank forked from this process, with the part of `subprocess.Popen` that torchrun's agent uses."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], stdout: IO[Any] | None, stderr: IO[Any] | None
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become_rank(args, env, stdout, stderr)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while the rank runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the rank to end and return its exit code.

        Raises:
            subprocess.TimeoutExpired: the rank still runs after `timeout` seconds.
        """
        deadline_s = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0)
            time.sleep(_POLL_S)
        return code


def _become_rank(args: Sequence[str], env: Mapping[str, str], stdout: IO[Any] | None, stderr: IO[Any] | None) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, file in ((0, nothing), (1, stdout), (2, stderr)):
        if file is not None:
            os.dup2(file if isinstance(file, int) else file.fileno(), fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # another thread of the agent may have held a lock of the old streams
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    draw_afresh()
    from worldsize.launch.worker import torchrun_main

    sys.argv = list(args[args.index("-m") + 1 :])
    torchrun_main.main()


if __name__ == "__main__":
    main()
