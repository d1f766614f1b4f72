"""Runs whose ranks are forked from a forkserver."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import threading
import time
import uuid
from typing import Any

from msgspec.structs import replace

from worldsize.emulate.launcher.server import Emulation
from worldsize.launch.display.output import KEPT_OUTPUT
from worldsize.launch.display.view import View
from worldsize.launch.launcher import arguments, forkserver
from worldsize.launch.launcher.forkserver import Forkserver, FromForkserver
from worldsize.launch.launcher.job import jobs_of
from worldsize.launch.launcher.kernel_memory import KernelMemory
from worldsize.launch.launcher.pickling import Carried
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.launcher.worker import Worker
from worldsize.launch.launcher.worker_group import WorkerGroup
from worldsize.launch.protocol.failure import FailureCause
from worldsize.launch.protocol.messages import Done, Exited, Failed, Forked, FromRank
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.reports.result import Run

_job_numbers = itertools.count(1)
_one_at_a_time = threading.RLock()  # runs share the forkserver's socket
_OUTPUT_CHUNK = 1 << 16
_FORKS_AT_ONCE = 64  # a Linux socket holds about 280 short unread messages
_END_S = 10.0  # how long the forkserver may take to end its ranks
_END_IN_JAIL_S = 0.15  # the same in a jail, which is swept or ended as a whole
_ANSWER_IN_JAIL_S = 0.3  # grading expects a result within a second of the time limit


def run_function(spec: Spec, carried: Carried, view: View) -> Run:
    """Run a function on forked ranks, real or emulated.

    Raises:
        ValueError: the cluster or its options are invalid, or there are too few GPUs.
        RankFailed, RunTimeout, RunStopped: it did not end well.
    """
    emulation = None
    if spec.cluster is not None:
        emulation = Emulation(
            world_size=spec.world_size,
            cluster=spec.cluster,
            allow=spec.allow,
            compute=spec.compute,
            faults=spec.faults,
            max_post_bytes=spec.quota.value_bytes,
            keeps_exchanges=spec.keeps_exchanges,
        )
    with _one_at_a_time:
        server = spec.forkserver or forkserver.shared()
        arguments.refuse_missing_gpus(spec.world_size, spec.backend, server.num_gpus)
        with ForkedWorkerGroup(server, view, spec.quota, emulation) as group:
            group.start(spec, carried)
            return group.outcome(group.listen(spec.timeout_s, spec.stalled_s))


class ForkedWorkerGroup(WorkerGroup):
    """Ranks forked from a forkserver, each with its own pipe for output."""

    def __init__(self, server: Forkserver, view: View, quota: Quota, emulation: Emulation | None = None) -> None:
        super().__init__(view, quota, emulation)
        self._forkserver = server
        self._by_job: dict[int, Worker] = {}
        self._requested_backend = "auto"
        self._are_ranks_left = False  # whether some ended too slowly to be waited for
        self._pipes: dict[int, int] = {}  # rank -> the pipe's read end
        self.selector.register(server.socket, selectors.EVENT_READ, self._read_forkserver)
        self._store = os.path.join(server.scratch, uuid.uuid4().hex)
        if not server.is_local:
            self.is_local, self.answer_s = False, _ANSWER_IN_JAIL_S

    def start(self, spec: Spec, carried: Carried) -> None:
        """Fork all ranks and send each its job."""
        self._requested_backend = spec.backend
        self._kernel_memory = KernelMemory(self._forkserver.process.pid, spec.world_size) if spec.memory else None
        emulated = self.emulation.for_ranks if self.emulation else None
        jobs = jobs_of(spec, carried, self._forkserver.is_local, self._store, emulated)
        jobs = [replace(job, is_watched=spec.memory) for job in jobs]
        for job in jobs:
            self._fork(job.rank)
            if len(self.workers) % _FORKS_AT_ONCE == 0:
                self._await_forks()
        if self._kernel_memory:  # it looks for a rank by its process ID as soon as the rank has joined
            self._await_forks()
        for worker, job, payload in zip(self.workers, jobs, carried.payloads, strict=True):
            conductor = [self.emulation.fd_of(worker.rank)] if self.emulation else []
            with contextlib.suppress(OSError):  # the rank's end is about to be reported
                worker.send(job, payload, [worker.call_log.fd, *conductor])
        if self.emulation:
            self.emulation.listen(self.selector, self._note_fault, self._note_loss)

    @property
    def headline(self) -> str:
        """One line: the number of ranks, their backend, and the reason for it if none was requested."""
        num_ranks, num_gpus = len(self.workers), self._forkserver.num_gpus
        ranks = f"{num_ranks} rank{'s' * (num_ranks != 1)} on "
        if self.emulation:
            return f"{ranks}the emulated {self.emulation.name}"
        if self.backend == "nccl":
            return ranks + "NCCL, with a GPU each"
        if self._requested_backend == "auto":
            few = f"has {num_gpus} GPU{'s' * (num_gpus != 1)}, too few" if num_gpus else "has no GPU"
            return f"{ranks}Gloo: this machine {few}"
        return ranks + "Gloo"

    def _fork(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        output_r, output_w = os.pipe()
        job = next(_job_numbers)
        worker = self._by_job[job] = self.add(rank, ours)
        with contextlib.suppress(OSError):  # the forkserver's end is about to be noticed
            self._forkserver.fork(job, theirs.fileno(), output_w)
        theirs.close()
        os.close(output_w)
        os.set_blocking(output_r, False)
        self._pipes[rank] = output_r
        self.selector.register(output_r, selectors.EVENT_READ, lambda: self._read_output(worker.rank))

    def _await_forks(self) -> None:
        """Wait until the requested ranks are forked: with more requests, each side would wait for the other to read."""
        while self._forkserver.is_alive and not all(worker.pid or worker.has_exited for worker in self.workers):
            self._read_forkserver()

    def _read_forkserver(self) -> None:
        try:
            for message in self._forkserver.receive():
                self._take_end(message)
        except (ConnectionError, ValueError):
            self._lose_forkserver()

    def _take_end(self, message: FromForkserver) -> None:
        match message:
            case Forked(job, pid) if worker := self._by_job.get(job):
                worker.pid = pid
            case Exited(job, status) if worker := self._by_job.get(job):
                self.receive_last(worker)
                self._note_exit(worker, status)
            case _:  # of a rank of an earlier run
                pass

    def _lose_forkserver(self) -> None:
        self.selector.unregister(self._forkserver.socket)
        self._forkserver.close()
        for worker in self.workers:
            if self._forkserver.is_local and worker.pid and not worker.has_exited:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)  # the rank died with the forkserver; what it started did not
            self._note_exit(worker, signal.SIGKILL)

    def _note_fault(self, rank: int, kind: str, reason: str) -> None:
        worker = self.workers[rank]
        if not worker.is_settled:
            worker.fail(FailureCause.CONDUCTOR, kind, reason)

    def _note_loss(self, rank: int) -> None:
        worker = self.workers[rank]
        if worker.is_settled:
            return
        if all(one.is_lost for one in self.workers if one is not worker):
            worker.fail(FailureCause.CONDUCTOR, "a planned loss", "no other rank is left to hear of it")
            return
        if self._kernel_memory:
            self._kernel_memory.look()
        worker.is_lost = True
        self._forkserver.kill([job for job, one in self._by_job.items() if one is worker])

    def _note_exit(self, worker: Worker, status: int) -> None:
        worker.has_exited = True
        if not worker.is_settled:
            worker.note_status(status, time.monotonic_ns())

    def take(self, worker: Worker, message: FromRank, content: Any) -> None:
        """Handle one message; read the rank's remaining output before its last one."""
        if isinstance(message, Done | Failed):
            self._drain(worker.rank)
        super().take(worker, message, content)

    def _read_output(self, rank: int) -> bool:
        if rank not in self._pipes:  # it has been read to its end since the selector reported it ready
            return False
        try:
            data = os.read(self._pipes[rank], _OUTPUT_CHUNK)
        except BlockingIOError:
            return False
        if data:
            self.take_output(rank, data)
        else:
            self.selector.unregister(self._pipes[rank])
            os.close(self._pipes.pop(rank))
        return bool(data)

    def end_ranks(self) -> None:
        """Kill the ranks, wait until the forkserver has reported their ends, then read their remaining output."""
        self._forkserver.kill([job for job, worker in self._by_job.items() if not worker.has_exited])
        deadline_s = time.monotonic() + (_END_S if self._forkserver.is_local else _END_IN_JAIL_S)
        while self._forkserver.is_alive and not self._are_ranks_left and not self._have_all_exited:
            self.turn(deadline_s)
            self._are_ranks_left = time.monotonic() > deadline_s
        for rank in list(self._pipes):
            self._drain(rank)

    @property
    def _have_all_exited(self) -> bool:
        return all(worker.has_exited for worker in self.workers)

    def _drain(self, rank: int) -> None:
        for _ in range(KEPT_OUTPUT // _OUTPUT_CHUNK):  # a process that a rank left behind may go on printing
            if not self._read_output(rank):
                break

    def __enter__(self) -> ForkedWorkerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End remaining processes and close all files and sockets."""
        super().close()
        for pipe in self._pipes.values():
            os.close(pipe)
        if self._forkserver.is_local:
            with contextlib.suppress(OSError):
                os.unlink(self._store)
