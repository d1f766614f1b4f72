"""It hands out the samples of one training and takes back its weights, timed by a clock that no rank can touch.

A client is not trusted: it may ask for anything, send anything, and never hang up.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from worldsize import framing
from worldsize.bench.checkpoint_folder import CheckpointFolder
from worldsize.bench.task import Task, TextTask

_log = logging.getLogger(__name__)
_MAX_CONNECTIONS = 256
_MAX_TAKES = 200_000
_MAX_HEADER_BYTES = 4096
_MAX_RANKS = 4096
_LEAST_ROOM_BYTES = 96 << 10  # in a file: a rank's log of its calls is a file too, and must not be cut short
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
_POLL_S = 0.01


@dataclass(frozen=True)
class Take:
    """Samples `start` to `stop` of a step's batch, handed to a rank (as it calls itself) at `time_s`, in seconds.

    `process` is the ID of the process that asked, as the kernel reports it; 0 where the system does not.
    """

    rank: int
    step: int
    start: int
    stop: int
    time_s: float
    process: int = 0


@dataclass
class Disturbance:
    """What happens when this rank asks for a step's samples; `time_s` is when it happened.

    - kill: the process that asks is killed. Under "truncate" and "corrupt" the newest checkpoint is first cut in half,
      or has some of its bits flipped.
    - stall: the process is stopped, until all the others have ended or `patience_s` seconds have passed.
    - mid_save: from its next samples on, the process may no longer write files larger than a quarter of the weights.
      The kernel ends it at that byte, in the middle of its next checkpoint; one that goes on all the same is killed.
    - full_disk: the checkpoints' disk has room for a quarter of the weights, until somebody asks for `free_step`.
    - hold: the process that asks waits for a process that has not asked before, `patience_s` at most.

    From then on a file at `notice` reports it to processes in a sandbox.
    """

    kind: Literal["kill", "truncate", "corrupt", "stall", "mid_save", "full_disk", "hold"]
    step: int
    rank: int
    patience_s: float = 60.0
    free_step: int | None = None
    time_s: float | None = None
    is_given_up: bool = False  # by the others, while it was stopped; the wait for another process, if none came

    def notice(self, address: str) -> str:
        """The path of the file that exists once it has struck the training of the sample server at this address."""
        return f"{address}.{self.kind}.{self.step}"


@dataclass
class TrainingRecord:
    """What was seen of one training: who took what, and the weights that came back (float32, flat).

    `saved_before` are the steps before which files were written among the checkpoints; `held_bytes` maps each
    step to the size of all of them before its samples were first taken.
    """

    takes: list[Take] = field(default_factory=list)
    saved_before: Sequence[int] = ()
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    weights: torch.Tensor | None = None
    handed_in_s: float | None = None

    def started_s(self, step: int) -> float | None:
        """When the first sample of this step or of a later one was handed out."""
        return min((take.time_s for take in self.takes if take.step >= step), default=None)

    def recovery_s(self, struck: Disturbance) -> float | None:
        """Seconds from a disturbance until a process that had not asked before asks for the same step, or a later one.

        None if it did not happen, or no process has come so far.
        """
        if struck.time_s is None:
            return None
        before = {take.process for take in self.takes if take.time_s <= struck.time_s}
        again = [take.time_s for take in self.takes if take.step >= struck.step and take.process not in before]
        return min(again) - struck.time_s if again else None

    def window_s(self, first_step: int) -> float | None:
        """Seconds from the first sample of `first_step` to the weights; the work in between cannot be done earlier."""
        started_s = self.started_s(first_step)
        return None if started_s is None or self.handed_in_s is None else self.handed_in_s - started_s

    def step_times_s(self) -> list[float]:
        """How long each step took, from its first sample to the first of the next one; the last to the weights."""
        starts: dict[int, float] = {}
        for take in self.takes:
            starts.setdefault(take.step, take.time_s)
        times = [starts[step] for step in sorted(starts)] + ([self.handed_in_s] if self.handed_in_s else [])
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def missed(self, task: Task | TextTask) -> list[int]:
        """The steps whose samples were not all handed out."""
        taken = {step: torch.zeros(task.batch_size, dtype=torch.bool) for step in range(task.num_steps)}
        for take in self.takes:
            taken[take.step][take.start : take.stop] = True
        return [step for step, samples in taken.items() if not bool(samples.all())]


class SampleServer:
    """The server of one training, which is disturbed once or several times; `address` is for the ranks' environment."""

    def __init__(
        self, task: Task | TextTask, seed: int, folder: str, disturbance: Disturbance | Sequence[Disturbance] = ()
    ) -> None:
        self.task, self.record = task, TrainingRecord()
        self.disturbances = [disturbance] if isinstance(disturbance, Disturbance) else list(disturbance)
        self._checkpoints: CheckpointFolder | None = None
        self._limited: dict[int, int] = {}  # processes whose files may not grow, and since which step
        self.batches = task.batches(seed)
        self.batches.draw_all(task.num_steps)
        self._num_weights = task.gradient_bytes // 4
        self._folder = tempfile.TemporaryDirectory(prefix="feed-", dir=folder)
        os.chmod(self._folder.name, 0o711)  # a jail has its own user
        self.address = os.path.join(self._folder.name, "s")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.address)
        os.chmod(self.address, 0o666)
        self._server.listen(_MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._connections: set[_ClientConnection] = set()
        self._processes: dict[int, int] = {}  # process ID -> handle, for every process that has connected
        self._is_closed = False
        self._accepting = threading.Thread(target=self._accept, daemon=True, name="sample server")
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return  # it is closed
            connection = _ClientConnection(sock)
            with self._lock:
                if self._is_closed or len(self._connections) >= _MAX_CONNECTIONS or not self._add_process(connection):
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=[connection], daemon=True, name="sample server connection"
                )
                try:
                    thread.start()
                except RuntimeError:  # no memory for another thread, as when too many clients connect
                    connection.close()
                    continue
                connection.thread = thread
                self._connections.add(connection)  # so `close` finds only what has started

    def _add_process(self, connection: _ClientConnection) -> bool:
        """Keep a handle of a connection's process; return False if an honest program has fewer processes."""
        if connection.pidfd is None:
            return True
        known = self._processes.get(connection.process)
        if known is not None and not _has_ended(known):
            return True
        if known is not None:
            os.close(self._processes.pop(connection.process))  # its ID has been reused
        if len(self._processes) >= _MAX_CONNECTIONS:
            return False
        self._processes[connection.process] = os.dup(connection.pidfd)
        return True

    def _serve(self, connection: _ClientConnection) -> None:
        try:
            while self._answer(connection):
                pass
        except _Impossible as reason:
            with contextlib.suppress(OSError):  # the client may have gone
                framing.send(connection.sock, "refused", reason=str(reason))
        except Exception:  # a bad message ends only this connection
            _log.debug("a connection ended", exc_info=True)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: _ClientConnection) -> bool:
        message = framing.receive(connection.sock, 4 * self._num_weights, _MAX_HEADER_BYTES)
        time_s = time.monotonic()
        if message is None:
            return False
        packed, body, fds = message
        try:
            header = framing.read_fields(packed)
        except ValueError:
            for fd in fds:
                os.close(fd)
            raise
        if header["kind"] == "lend":
            return self._borrow(connection, fds)
        for fd in fds:
            os.close(fd)
        if header["kind"] == "hand_in":
            return self._take_weights(connection, body, time_s)
        wanted = [header[name] for name in ("rank", "step", "start", "stop")]
        if refusal := self._refusal(wanted):
            framing.send(connection.sock, "refused", reason=refusal)
            return True
        rank, step, start, stop = wanted
        take = Take(rank, step, start, stop, time_s, connection.process)
        with self._lock:
            self.record.takes.append(take)
            self._look(take)
            struck = self._strike(take)
        if self._has_outlived_its_save(take):
            connection.signal(signal.SIGKILL)
            return False
        if struck and not self._disturb(connection, struck):
            return False
        self._hand_out(connection, take)
        return True

    def _refusal(self, wanted: list[Any]) -> str:
        """Return why this request is refused; empty if it is not."""
        if not all(type(value) is int for value in wanted):
            return f"rank, step, start and stop must be whole numbers, not {wanted!r:.80}"
        rank, step, start, stop = wanted
        if not 0 <= rank < _MAX_RANKS:
            return f"rank {rank!r:.20} does not exist: ranks are counted from 0"
        if not 0 <= step < self.task.num_steps:
            return f"there is no step {step}: steps are 0 to {self.task.num_steps - 1}"
        if not 0 <= start <= stop <= self.task.batch_size:
            return (
                f"there are no samples {start} to {stop}: the global batch has {self.task.batch_size}, numbered from 0"
            )
        if len(self.record.takes) >= _MAX_TAKES:
            return f"the program asked for samples more than {_MAX_TAKES} times"
        return ""

    def _hand_out(self, connection: _ClientConnection, take: Take) -> None:
        tensors = [tensor[take.start : take.stop] for tensor in self.batches.batch(take.step)]
        kinds = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]
        most_bytes = self._room_bytes if take.process in self._limited else 0
        body = b"".join(tensor.numpy().tobytes() for tensor in tensors)
        framing.send(connection.sock, "samples", body, kinds=kinds, most_bytes=most_bytes)

    def _borrow(self, connection: _ClientConnection, fds: list[int]) -> bool:
        """Accept the checkpoint folder from the program's starter, once, before any rank can offer one."""
        with self._lock:
            is_first = self._checkpoints is None and not self.record.takes and len(self._processes) <= 1
            if not is_first or len(fds) != 1:
                for fd in fds:
                    os.close(fd)
                return False
            self._checkpoints = CheckpointFolder(fds[0])
            if (
                any(disturbance.kind == "full_disk" for disturbance in self.disturbances)
                and not self._checkpoints.is_on_small_disk
            ):
                reason = "a disk is filled up only inside a sandbox; this one is so large that it may be somebody's own"
                framing.send(connection.sock, "refused", reason=reason)
                return False
            self.record.saved_before = self._checkpoints.saved_before
            self.record.held_bytes = self._checkpoints.held_bytes
            if (handle := self._processes.pop(connection.process, None)) is not None:
                os.close(handle)  # it is not a rank
        framing.send(connection.sock, "thanks")
        return True

    def _take_weights(self, connection: _ClientConnection, body: bytes, time_s: float) -> bool:
        if len(body) != 4 * self._num_weights:
            framing.send(
                connection.sock, "refused", reason=f"{self._num_weights} float32 weights are due, not {len(body)} bytes"
            )
            return True
        with self._lock:
            self.record.weights = torch.frombuffer(bytearray(body), dtype=torch.float32)
            self.record.handed_in_s = time_s
        framing.send(connection.sock, "thanks")
        return True

    # disturbances
    def _look(self, take: Take) -> None:
        if self._checkpoints is None:
            return
        self._checkpoints.look(take.step)
        if any(
            disturbance.time_s and disturbance.free_step is not None and take.step >= disturbance.free_step
            for disturbance in self.disturbances
        ):
            self._checkpoints.free_disk()

    def _strike(self, take: Take) -> Disturbance | None:
        """Return the disturbance that is due now; they come in order."""
        ours = next((disturbance for disturbance in self.disturbances if disturbance.time_s is None), None)
        # if by a later step no process has asked as this rank, the next process that asks is taken
        if ours and (take.step > ours.step or (take.step, take.rank) == (ours.step, ours.rank)):
            ours.time_s = take.time_s
            Path(ours.notice(self.address)).touch()
            return ours
        return None

    def _disturb(self, connection: _ClientConnection, struck: Disturbance) -> bool:
        """Disturb the process that asked, or its checkpoints; return True if it gets its samples all the same."""
        if struck.kind == "stall":
            self._stall(connection, struck)
        elif struck.kind == "hold":
            self._hold(struck)
        elif struck.kind == "mid_save":
            self._limit_files(struck.step)
        elif struck.kind == "full_disk":
            self._lent().fill_disk(self._room_bytes)
        else:
            if struck.kind != "kill":
                self._lent().damage(struck.kind)
            connection.signal(signal.SIGKILL)
            return False
        return True

    @property
    def _room_bytes(self) -> int:
        """The room left on a disk or in a file: less than a checkpoint, unless the model is very small."""
        return max(_LEAST_ROOM_BYTES, self._num_weights)

    def _lent(self) -> CheckpointFolder:
        if self._checkpoints is None:
            raise _Impossible("this training keeps no checkpoints that could be damaged")
        return self._checkpoints

    def _has_outlived_its_save(self, take: Take) -> bool:
        """Whether a process whose checkpoint was cut short kept the kernel from ending it there."""
        return take.step > self._limited.get(take.process, take.step) + 1

    def _limit_files(self, step: int) -> None:
        with self._lock:
            self._limited = {number: step for number, handle in self._processes.items() if not _has_ended(handle)}

    def _stall(self, connection: _ClientConnection, struck: Disturbance) -> None:
        connection.signal(signal.SIGSTOP)
        with self._lock:
            others = [handle for number, handle in self._processes.items() if number != connection.process]
        others = [handle for handle in others if not _has_ended(handle)]
        deadline_s = time.monotonic() + struck.patience_s
        while time.monotonic() < deadline_s and not self._is_closed:
            if others and all(map(_has_ended, others)):
                struck.is_given_up = True
                break
            time.sleep(_POLL_S)
        connection.signal(signal.SIGCONT)

    def _hold(self, struck: Disturbance) -> None:
        with self._lock:
            known, num_takes = set(self._askers()), len(self.record.takes)
        deadline_s = time.monotonic() + struck.patience_s
        while time.monotonic() < deadline_s and not self._is_closed:
            if not known.issuperset(self._askers(num_takes)):
                return
            time.sleep(_POLL_S)
        struck.is_given_up = True

    def _askers(self, first: int = 0) -> Iterator[int]:
        """Yield the processes of all takes from this one on."""
        return (take.process for take in self.record.takes[first:])

    def close(self) -> None:
        """Close every connection and the server."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._server.close()
        for connection in connections:
            connection.hang_up()
            if connection.thread:
                connection.thread.join(5)
        self._accepting.join(5)
        for handle in self._processes.values():
            os.close(handle)
        self._processes.clear()
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._folder.cleanup()

    def __enter__(self) -> SampleServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Impossible(Exception):
    """The disturbance is impossible in this training; the text says why."""


class _ClientConnection:
    """A connection, and a handle of the process that made it; unlike an ID, it is never reused for another process."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.is_open = sock, True
        self.thread: threading.Thread | None = None
        self.process, self.pidfd = _peer(sock)

    def signal(self, number: int) -> None:
        """Signal the process, if it still runs."""
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def hang_up(self) -> None:
        """Wake the thread that reads from it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and the handle."""
        self.is_open = False
        self.sock.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _has_ended(handle: int) -> bool:
    """Whether the process of this handle has ended."""
    poll = select.poll()  # unlike select, with any number of open files
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _peer(sock: socket.socket) -> tuple[int, int | None]:
    """The ID and a handle of the process at the other end; 0 and None if the system does not report them."""
    if not hasattr(os, "pidfd_open"):
        return 0, None
    number = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with contextlib.suppress(OSError):
        return number, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    with contextlib.suppress(OSError):
        return number, os.pidfd_open(number)
    return number, None
