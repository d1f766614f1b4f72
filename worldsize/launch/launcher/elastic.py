"""Ranks under torch's real elastic agent, with torchrun's own flags."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from worldsize import framing
from worldsize.cores import num_cores
from worldsize.launch.display import view
from worldsize.launch.launcher import arguments, forkserver
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.launcher.job import jobs_of
from worldsize.launch.launcher.pickling import Carried
from worldsize.launch.launcher.scratch import ScratchFolder
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.launcher.worker import Worker
from worldsize.launch.launcher.worker_group import LAST_READS, WorkerGroup
from worldsize.launch.protocol.failure import FailureCause
from worldsize.launch.protocol.messages import FromRank, Hello, Leave, RunFunction, RunScript
from worldsize.launch.protocol.process import SOCKET
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.reports.result import Ending, RankFailed, Run
from worldsize.message import read

_RANK_LINE = re.compile(rb"\[rank (\d+)\] ?")
_EXIT = re.compile(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)")  # in the agent's closing summary
_CHUNK = 1 << 12  # bytes of a first message read at a time
_MAX_CALLERS = 256  # connections that have not sent `Hello` yet; a rank sends it at once
_LONGEST_LINE = 1 << 16  # bytes; longer lines are split
_KEPT_OUTPUT = 1 << 16  # characters of the agent's own output
_JOINED_BYTES = 256  # whether it joined a process group, which is all that a rank of a script returns
_CLOSE_S = 3.0  # how long the agent may take to end its ranks before it is killed


def run_script(
    flags: Flags, command: list[str], timeout_s: float, stalled_s: float | None, env: dict[str, str], shown: view.View
) -> Run:
    """Run a script with its arguments under the agent."""
    with ElasticWorkerGroup(flags, env, shown) as group:
        group.start(command)
        return group.outcome(group.listen(timeout_s, stalled_s))


def run_function(spec: Spec, carried: Carried, shown: view.View) -> Run:
    """Run a function on every rank under the agent."""
    if spec.backend == "nccl":
        arguments.refuse_missing_gpus(spec.world_size, spec.backend, forkserver.shared().num_gpus)
    flags = Flags.parse([f"--nproc-per-node={spec.world_size}"])
    with ElasticWorkerGroup(flags, {}, shown, jobs_of(spec, carried), carried.payloads, spec.quota) as group:
        group.start([])
        return group.outcome(group.listen(spec.timeout_s, spec.stalled_s))


class ElasticWorkerGroup(WorkerGroup):
    """Ranks that torchrun's agent starts and restarts; each connects to a socket in the run's folder."""

    may_recover = True

    def __init__(
        self,
        flags: Flags,
        env: dict[str, str],
        shown: view.View,
        jobs: Sequence[RunFunction] = (),
        payloads: Sequence[bytes] = (),
        quota: Quota | None = None,
    ) -> None:
        super().__init__(shown, quota or Quota(value_bytes=_JOINED_BYTES))
        self._flags, self._env, self._jobs, self._payloads = flags, env, jobs, payloads
        self._folder = ScratchFolder("/tmp")  # a socket's path must be short
        self._server = socket.socket(socket.AF_UNIX)
        self._path = os.path.join(self._folder.path, "ranks")
        self._server.bind(self._path)
        self._server.listen(128)
        self.selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._callers: list[socket.socket] = []  # that have not sent `Hello` yet
        self._first_gone: set[Worker] = set()  # ranks that ended before any that failed, so not ended by the agent
        self._process: subprocess.Popen[bytes] | None = None
        self._agent_output = ""
        self._rest = b""
        self._line_rank: int | None = None  # of the unfinished line
        self._has_ended = False
        self._own_failure: list[str] = []  # of the agent, not of a rank
        self._world_size = 0
        self.backend = "torchrun"

    def start(self, program: list[str]) -> None:
        """Start the agent, which starts the ranks."""
        command = [sys.executable, "-m", "worldsize.launch.worker.agent", str(os.getpid())]
        command += [*self._flags.complete(self._folder.path), "-m", "worldsize.launch.worker.torchrun_main", *program]
        self._process = subprocess.Popen(
            command,
            env=environment(self._flags, self._env, self._path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout
        self.selector.register(self._process.stdout, selectors.EVENT_READ, self._read_agent)

    # messages and output

    @property
    def warnings(self) -> list[str]:
        """Failures of threads, and that of the agent itself, which no restart covers."""
        return [*super().warnings, *self._own_failure]

    @property
    def is_over(self) -> bool:
        """True if the agent has ended."""
        return self._has_ended

    @property
    def headline(self) -> str:
        """One line: how many ranks, and who starts them."""
        return f"{self._world_size} rank{'s' * (self._world_size != 1)} under torchrun"

    def _accept(self) -> None:
        """Accept a connection, from whichever process, and register its first message without blocking."""
        control, _ = self._server.accept()
        control.setblocking(False)
        inbox = framing.Inbox(max_body_bytes=0)
        self._callers.append(control)
        self.selector.register(control, selectors.EVENT_READ, lambda: self._greet(control, inbox))
        if len(self._callers) > _MAX_CALLERS:
            self._dismiss(self._callers[0]).close()

    def _greet(self, control: socket.socket, inbox: framing.Inbox) -> None:
        """Read a rank's `Hello`; close the connection on anything else."""
        try:
            data = control.recv(_CHUNK)
            messages = inbox.feed(data)
            if data and not messages:
                return
            ((header, _),) = messages
            hello = read(header, Hello)
            task = self._jobs[hello.rank] if self._jobs else RunScript()
        except (OSError, ValueError, IndexError):
            self._dismiss(control).close()
        else:
            self._add_rank(self._dismiss(control), hello, task)

    def _dismiss(self, control: socket.socket) -> socket.socket:
        self._callers.remove(control)
        self.selector.unregister(control)
        return control

    def _add_rank(self, control: socket.socket, hello: Hello, task: RunFunction | RunScript) -> None:
        self._forget(hello.local_rank)
        self.restarts = max(self.restarts, hello.restarts)
        worker = self.add(hello.rank, control)
        worker.local_rank, worker.pid, worker.has_joined = hello.local_rank, hello.pid, True
        self._world_size = hello.world_size
        self.view.begin(self.headline)
        payload = self._payloads[worker.rank] if self._payloads else b""
        with contextlib.suppress(OSError):  # the rank's end is about to be reported
            worker.send(task, payload, [worker.call_log.fd])

    def _forget(self, local_rank: int) -> None:
        """Drop the worker whose rank the agent has restarted."""
        for worker in [worker for worker in self.workers if worker.local_rank == local_rank]:
            self.workers.remove(worker)
            if not worker.is_hung_up:
                self.hang_up(worker)
            _end_group(worker)
            worker.close()

    def hang_up(self, worker: Worker) -> None:
        """Stop receiving from a rank, and note whether it ended before any failure."""
        super().hang_up(worker)
        if not any(other.failure and other.is_hung_up for other in self.workers):
            self._first_gone.add(worker)

    def take(self, worker: Worker, message: FromRank, content: Any) -> None:
        """Handle one message; let the ranks exit once all of them have sent their values."""
        super().take(worker, message, content)
        if self._payloads and self.went_well and len(self.workers) == len(self._payloads):
            for one in self.workers:
                with contextlib.suppress(OSError):
                    one.send(Leave())

    def _read_agent(self) -> None:
        assert self._process and self._process.stdout
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take_line(line + b"\n")
        if self._rest and (not data or len(self._rest) > _LONGEST_LINE):
            self._take_line(self._rest)
            self._rest = b""
        if not data:
            self.selector.unregister(self._process.stdout)
            self._process.wait()
            self._has_ended = True

    def _take_line(self, line: bytes) -> None:
        match = _RANK_LINE.match(line)
        if match:
            self._line_rank = int(match[1])
            line = line[match.end() :]
        if self._line_rank is not None:
            self.take_output(self._line_rank, line)
        else:
            self._agent_output = (self._agent_output + line.decode("utf-8", "replace"))[-_KEPT_OUTPUT:]
        if line.endswith(b"\n"):
            self._line_rank = None

    # how it ends

    def outcome(self, ending: Ending) -> Run:
        """Return the `Run` if the agent ended well.

        Raises:
            RankFailed, RunTimeout, RunStopped: otherwise.
        """
        assert self._process
        for _ in range(LAST_READS):  # in turns, so that the rank that ended first is noticed first
            for worker in self.workers:
                self.receive(worker)
        if self._has_ended and self._process.returncode == 0:
            for worker in self.workers:  # a script may leave by os._exit, without a report
                worker.has_value, worker.failure = True, None
        elif self._has_ended:
            self._note_exits()
        return super().outcome(ending)

    def _note_exits(self) -> None:
        by_rank = {worker.rank: worker for worker in self.workers}
        exits = [(int(rank), int(code)) for rank, code in _EXIT.findall(self._agent_output)]
        for rank, code in exits:
            worker = by_rank.get(rank)
            if worker and not worker.is_settled and code != -signal.SIGTERM:  # the agent sends that to the others
                worker.note_status(-code if code < 0 else code << 8, 0)
        failures = [worker.failure for worker in self.workers if worker.failure]
        if failures and all(failure.is_victim for failure in failures):  # of ranks that ended well, but too early
            for worker in sorted(self._first_gone.intersection(self.workers), key=lambda worker: worker.rank):
                worker.has_value = False
                worker.fail(FailureCause.EXIT, "an early end", "its process ended while others still needed it")
        if not failures:
            said = self._agent_output.strip()[-2000:]
            if "Traceback (most" in said:  # torchrun's own traceback says nothing about the script
                said = said.splitlines()[-1]
            raise RankFailed(f"torchrun failed and named no rank. It said:\n{said}")
        if not exits:  # it gave up for a reason of its own, while or after it restarted these ranks
            assert self._process
            code = self._process.returncode
            last = self._agent_output.strip().rpartition("\n")[2]
            how = f"with {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}: {last}"
            self._own_failure = [f"torchrun's agent failed, too, after that: {how}"]

    def end_ranks(self) -> None:
        """End the agent with SIGTERM, then with SIGKILL, and kill all ranks that are left."""
        if self._process is None:
            return
        deadline_s = time.monotonic() + _CLOSE_S
        if not self._has_ended:
            self._process.terminate()
        while not self._has_ended and time.monotonic() < deadline_s:
            self.turn(deadline_s)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for worker in self.workers:
            if not worker.has_exited:  # once only: its process ID may soon be reused
                worker.has_exited = True
                _end_group(worker)

    def __enter__(self) -> ElasticWorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End remaining processes and close all files and sockets."""
        super().close()
        for sock in (self._server, *self._callers):
            sock.close()
        if self._process:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe
                pipe.close()
        self._folder.remove()


def environment(flags: Flags, env: Mapping[str, str], path: str) -> dict[str, str]:
    """Make the environment of an agent and its ranks; the user's settings take precedence."""
    ours = {
        "OMP_NUM_THREADS": str(max(1, num_cores() // flags.num_ranks)),
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # keys left in a shared store fail restarts on Gloo (torch 2.13)
    }
    if flags.is_local:
        ours["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return {**ours, **os.environ, **env, SOCKET: path}


def _end_group(worker: Worker) -> None:
    """Kill a rank and the processes it started; torchrun makes every rank the leader of a process group."""
    if worker.pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
