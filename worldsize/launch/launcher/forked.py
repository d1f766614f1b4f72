"""The ranks of a run as forks of a warm nursery."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import time
import uuid
from typing import Any

from worldsize import framing
from worldsize.emulate.server import Emulation
from worldsize.launch.display.output import KEPT_OUTPUT
from worldsize.launch.display.view import View
from worldsize.launch.launcher.forkserver import Nursery
from worldsize.launch.launcher.job import job_of
from worldsize.launch.launcher.worker_group import Crew, Member
from worldsize.launch.protocol import failure
from worldsize.launch.protocol.quota import Quota

_job_numbers = itertools.count(1)
_OUTPUT_CHUNK = 1 << 16
_END_S = 10.0  # how long the nursery may take to end its ranks,
_END_IN_JAIL_S = 0.15  # and in a jail, which is swept or ended as a whole
_ANSWER_IN_JAIL_S = 0.3  # a verdict is due a second after its limit


class ForkedCrew(Crew):
    """Ranks that a nursery forks; each one prints into a pipe of its own."""

    def __init__(self, nursery: Nursery, view: View, quota: Quota, emulation: Emulation | None = None) -> None:
        super().__init__(view, quota, emulation)
        self._nursery = nursery
        self._by_job: dict[int, Member] = {}
        self._asked = "auto"
        self._are_ranks_left = False  # ended too slowly to be waited for
        self._pipes: dict[int, int] = {}  # rank -> the end that is read
        self.selector.register(nursery.socket, selectors.EVENT_READ, self._hear_nursery)
        self._store = os.path.join(nursery.scratch, uuid.uuid4().hex)
        if not nursery.is_local:
            self.answer_s = _ANSWER_IN_JAIL_S

    def start(self, payloads: list[bytes], backend: str, timeout_s: float, env: dict[str, str]) -> None:
        """Forks a rank for every payload and hands each its job."""
        self._asked = backend
        job = job_of(len(payloads), backend, timeout_s, env, self._nursery.is_local) | {"store": self._store}
        if self.emulation:
            job |= self.emulation.fields
        for rank in range(len(payloads)):
            self._fork(rank)
        for member, payload in zip(self.members, payloads, strict=True):
            with contextlib.suppress(OSError):  # its end is about to be reported
                wire = [self.emulation.fd_of(member.rank)] if self.emulation else []
                self.tell(member, "job", payload, fds=[member.call_log.fd, *wire], rank=member.rank, **job)
        if self.emulation:
            self.emulation.listen(self.selector, self._note_fault)

    @property
    def headline(self) -> str:
        """One line: how many ranks, on which backend, and why on that one if it was not asked for."""
        num_ranks, num_gpus = len(self.members), self._nursery.num_gpus
        ranks = f"{num_ranks} rank{'s' * (num_ranks != 1)} on "
        if self.emulation:
            return f"{ranks}the emulated {self.emulation.name}"
        if self.backend == "nccl":
            return ranks + "NCCL, with a GPU each"
        if self._asked == "auto":
            few = f"has {num_gpus} GPU{'s' * (num_gpus != 1)}, too few" if num_gpus else "has no GPU"
            return f"{ranks}Gloo: this machine {few}"
        return ranks + "Gloo"

    def _fork(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        output_r, output_w = os.pipe()
        job = next(_job_numbers)
        member = self._by_job[job] = self.add(rank, ours)
        with contextlib.suppress(OSError):  # the nursery's end is about to be heard
            self._nursery.fork(job, theirs.fileno(), output_w)
        theirs.close()
        os.close(output_w)
        os.set_blocking(output_r, False)
        self._pipes[rank] = output_r
        self.selector.register(output_r, selectors.EVENT_READ, lambda: self._hear_output(member.rank))

    def _hear_nursery(self) -> None:
        try:
            message = framing.receive(self._nursery.socket)
        except ConnectionError:
            message = None
        if message is None:
            self._lose_nursery()
            return
        header = message[0]
        member = self._by_job.get(header.get("job", 0))
        if member and header["kind"] == "forked":
            member.pid = header["pid"]
        if member and header["kind"] == "exited":
            for _ in range(4):  # what it said last stands before how it ended; more than a socket holds
                self.hear(member)
            self._note_exit(member, header["status"])

    def _lose_nursery(self) -> None:
        self.selector.unregister(self._nursery.socket)
        self._nursery.close()
        for member in self.members:
            if self._nursery.is_local and member.pid and not member.has_exited:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(member.pid, signal.SIGKILL)  # the rank went with the nursery; what it started did not
            self._note_exit(member, signal.SIGKILL)

    def _note_fault(self, rank: int, kind: str, reason: str) -> None:
        member = self.members[rank]
        if not member.is_settled:
            member.fail(kind, reason)

    def _note_exit(self, member: Member, status: int) -> None:
        member.has_exited = True
        if not member.is_settled:
            member.failure = failure.of_status(member.rank, status, time.monotonic_ns())

    def take(self, member: Member, header: dict[str, Any], body: bytes) -> None:
        """Takes one message; what the rank printed before its last one comes first."""
        if header.get("kind") in ("done", "failed"):
            self._drain(member.rank)
        super().take(member, header, body)

    def _hear_output(self, rank: int) -> bool:
        if rank not in self._pipes:  # it has been read to its end since it was seen to be ready
            return False
        try:
            data = os.read(self._pipes[rank], _OUTPUT_CHUNK)
        except BlockingIOError:
            return False
        if data:
            self.print(rank, data)
        else:
            self.selector.unregister(self._pipes[rank])
            os.close(self._pipes.pop(rank))
        return bool(data)

    def end_ranks(self) -> None:
        """Ends them and waits until the nursery has seen their ends; then takes what they printed last."""
        self._nursery.kill([job for job, member in self._by_job.items() if not member.has_exited])
        deadline_s = time.monotonic() + (_END_S if self._nursery.is_local else _END_IN_JAIL_S)
        while self._nursery.is_alive and not self._are_ranks_left and not all(one.has_exited for one in self.members):
            self.turn(deadline_s)
            self._are_ranks_left = time.monotonic() > deadline_s
        for rank in list(self._pipes):
            self._drain(rank)

    def _drain(self, rank: int) -> None:
        for _ in range(KEPT_OUTPUT // _OUTPUT_CHUNK):  # what a rank left running may go on printing
            if not self._hear_output(rank):
                break

    def close(self) -> None:
        """Ends what is left and forgets it."""
        super().close()
        for pipe in self._pipes.values():
            os.close(pipe)
        if self._nursery.is_local:
            with contextlib.suppress(OSError):
                os.unlink(self._store)
