"""One rank: receives a function, runs it in a process group, and sends back its value or its failure."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from worldsize import framing, source
from worldsize.audit import observers
from worldsize.emulate.protocol.messages import Emulated
from worldsize.launch.protocol import codec, failure, stack_dump
from worldsize.launch.protocol.call_log import CallLog
from worldsize.launch.protocol.messages import (
    Begin,
    Done,
    Events,
    Failed,
    Held,
    Joined,
    Leave,
    Locate,
    Position,
    Probe,
    Probed,
    RunFunction,
    RunScript,
)
from worldsize.launch.protocol.process import die_with_parent, draw_afresh, end_own_group, enter_network
from worldsize.launch.worker import call_tracer, native_calls, spans, thread_failures
from worldsize.launch.worker.native_wait import NativeWait
from worldsize.launch.worker.parameter_names import name_parameters
from worldsize.message import Message, pack_and_send, read

if TYPE_CHECKING:
    from worldsize.emulate.worker.works import Observer  # these need torch
    from worldsize.memory.meter import MemoryMeter


_PERIOD_S = 0.2  # how often a rank of an emulated cluster flushes its posts while it works
_PERIOD_AT_RANK_S = 0.02  # added to this period for every rank on this machine


def main(sock: socket.socket, output_fd: int) -> None:
    """Serve the one job received over `sock`, then wait to be killed; never return."""
    die_with_parent()
    _take_output(output_fd)
    assignment = take_assignment(sock)
    assert isinstance(assignment.task, RunFunction)
    if assignment.task.place:  # then the job has the whole environment, and this one dates from the forkserver's start
        os.environ.clear()
    serve(assignment, assignment.task, join)
    # exiting now would close connections of ranks that are still at work, and the interpreter's own exit
    # occasionally aborts while a process group is alive (torch 2.13 on Gloo)
    while True:
        signal.pause()


@dataclass(frozen=True)
class RankAssignment:
    """What the launcher has given this rank: a task with its pickled function, and a way to report on it."""

    link: LauncherLink
    task: RunFunction | RunScript
    payload: list[bytes]  # one; it is taken when it is unpickled, so that no frame below the function's holds it
    observer: Observer  # of the calls that go to a conductor
    conductor: socket.socket | None  # of an emulated cluster


@dataclass(frozen=True)
class Membership:
    """The process group that this rank has joined; `leave` is called when its function has returned.

    `flush` sends pending posts: when the function ends, and periodically while it works.
    """

    backend: str
    leave: Callable[[], None] = lambda: None
    flush: Callable[[], None] = lambda: None


def take_assignment(sock: socket.socket) -> RankAssignment:
    """The assignment that comes over `sock`; from here on calls of torch.distributed are noted."""
    link = LauncherLink(sock)
    try:
        received = framing.receive(sock)
        if received is None:
            os._exit(1)
        header, payload, (log_fd, *conductor_fd) = received
        task = read(header, RunFunction, RunScript)
    except BaseException as error:
        link.report(error)
        link.wait_for_end()
    observer = call_tracer.install(CallLog(log_fd))
    stack_dump.install(log_fd)
    thread_failures.install(link.send)
    conductor = socket.socket(fileno=conductor_fd[0]) if conductor_fd else None
    if conductor is None:
        native_calls.install()
    period_s = _PERIOD_S + _PERIOD_AT_RANK_S * task.world_size if isinstance(task, RunFunction) and conductor else None
    threading.Thread(target=link.serve, args=(period_s,), daemon=True, name="control").start()
    return RankAssignment(link=link, task=task, payload=[payload], observer=observer, conductor=conductor)


def serve(
    assignment: RankAssignment, job: RunFunction, join: Callable[[RankAssignment, RunFunction], Membership]
) -> bool:
    """Run the job's function and report its value or why it failed; return True if it returned."""
    link = assignment.link
    try:
        prepare(job)
        membership = join(assignment, job)
        link.send(Joined(membership.backend))
        if job.is_watched:
            link.may_begin.wait()
        start_s = time.monotonic()
        link.meanwhile = membership.flush
        try:
            with _counted(job) as meter, audited():
                value = _work(assignment.payload)
        finally:
            membership.flush()  # other ranks may wait for these posts, however this rank ends
        membership.leave()
        value = codec.encode(value)
        _flush()  # before the launcher learns that this rank is done and kills it
        link.send_events()
        if meter:
            link.send(Held(meter.use()))
        link.send(Done(spans.drain(), time.monotonic() - start_s, native_calls.num_unseen()), value)
        return True
    except BaseException as error:  # a rank reports whatever ends it, including SystemExit
        link.report(error)
        return False


class LauncherLink:
    """The socket to the launcher: one thread answers its questions, the other reports."""

    def __init__(self, sock: socket.socket) -> None:
        self.may_begin = threading.Event()
        self.meanwhile: Callable[[], None] = lambda: None  # called periodically by the thread that answers requests
        self._sock = sock
        self._lock = threading.Lock()
        self._main_thread = threading.get_ident()
        self._native_wait = NativeWait()

    def send(self, message: Message, body: bytes = b"") -> None:
        """Send one message."""
        with self._lock:
            pack_and_send(self._sock, message, body)

    def send_events(self) -> None:
        """Report the times of this rank's calls and its profiled events."""
        for batch in spans.drain_events():
            self.send(Events(batch))

    def report(self, error: BaseException) -> None:
        """Report how this rank failed."""
        time_ns = time.monotonic_ns()
        _flush()
        described = failure.of_exception(0, error, time_ns)
        described = replace(described, message=name_parameters(described.message))
        self.send(Failed(described, spans.drain()))

    def serve(self, period_s: float | None) -> None:
        """Answer the launcher's requests and call `meanwhile` once per period; end the process when it hangs up."""
        question = select.poll()
        question.register(self._sock, select.POLLIN)
        period_ms = None if period_s is None else 1000 * period_s
        try:
            while True:
                if not question.poll(period_ms):
                    self.meanwhile()
                    continue
                if (received := framing.receive(self._sock)) is None:
                    break
                match read(received[0], Begin, Locate, Probe, Leave):
                    case Begin():
                        self.may_begin.set()
                    case Locate():
                        lines = source.lines_of(sys._current_frames()[self._main_thread])
                        self.send(Position(lines, **call_tracer.native()))
                    case Probe():
                        self.send(Probed(self._native_wait.number()))
                    case Leave():
                        os._exit(0)
        finally:
            end_own_group()
            os._exit(0)

    def wait_for_end(self) -> NoReturn:
        """Discard further messages; end the process when the launcher hangs up."""
        try:
            while self._sock.recv(1 << 20):
                pass
        finally:
            end_own_group()
            os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the function may have replaced it with anything
            stream.flush()


def _take_output(fd: int) -> None:
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    # the forkserver's streams were opened on a different kind of file, which they remember
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def prepare(job: RunFunction) -> None:
    """Make this process look like the launcher: environment, folder, search path, cells."""
    if job.network:
        enter_network(job.network)
    here = {"RANK": job.rank, "LOCAL_RANK": job.local_rank}
    here |= {"WORLD_SIZE": job.world_size, "LOCAL_WORLD_SIZE": job.local_world_size}
    os.environ.update({**job.env, **{name: str(number) for name, number in here.items()}})
    if job.place:
        os.chdir(job.place.cwd)
        sys.path[:] = job.place.path
    draw_afresh()
    source.remember_sources(job.sources)

    import torch

    torch.set_num_threads(job.num_threads)


def _counted(job: RunFunction) -> contextlib.AbstractContextManager[MemoryMeter | None]:
    """The context in which the memory that this rank's tensors hold is counted, if the job says so."""
    if not job.counts_memory:
        return contextlib.nullcontext()
    from worldsize.memory.meter import MemoryMeter

    return MemoryMeter(capacity=job.capacity)


def audited() -> contextlib.AbstractContextManager[None]:
    """The context in which this rank's program is observed, if its environment asks for an audit."""
    if not observers.is_asked_for():
        return contextlib.nullcontext()
    return observers.observing(call_tracer.listeners)


def _work(payload: list[bytes]) -> Any:
    fn, args = _unpickled(payload.pop())
    return fn(*args)


def _unpickled(payload: bytes) -> tuple[Callable[..., Any], list[Any]]:
    unpickler = pickle.Unpickler(io.BytesIO(payload))
    (fn, args), own = unpickler.load(), unpickler.load()
    return fn, [*args, *own]


def join(assignment: RankAssignment, job: RunFunction) -> Membership:
    """This rank's membership in the default process group, once it has joined."""
    import torch.distributed as dist

    from worldsize.launch.worker import joining_again

    store = dist.FileStore(job.store, job.world_size)  # pyright: ignore[reportPrivateImportUsage]
    if job.emulated is not None:
        membership = _join_emulated(assignment, job, job.emulated, store)
    else:
        membership = _join_real(job, store)
    joining_again.install(store, job.rank, job.world_size)
    return membership


def _join_real(job: RunFunction, store: Any) -> Membership:
    import torch
    import torch.distributed as dist

    backend = choose_backend(job)
    keep_to_allowed(job)
    device = None
    if backend == "nccl":
        device = torch.device("cuda", job.rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=job.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.timeout_s + 60),
        device_id=device,
    )
    return Membership(backend)


def _join_emulated(assignment: RankAssignment, job: RunFunction, cluster: Emulated, store: Any) -> Membership:
    from worldsize.emulate.worker import backend

    assert assignment.conductor
    client = backend.join(
        sock=assignment.conductor,
        rank=job.rank,
        world_size=job.world_size,
        store=store,
        allow=cluster.allow,
        compute=cluster.compute,
        missing=cluster.missing,
        observer=assignment.observer,
        local_world_size=cluster.local_world_size,
    )
    spans.stop(client.span)
    call_tracer.refuse_gaps()
    call_tracer.log_calls_of("monitored_barrier")  # which the cluster has replaced

    def flush() -> None:
        with contextlib.suppress(OSError):  # the conductor has hung up, as the next call will report
            client.flush()

    return Membership(backend.BACKEND, client.leave, flush)


def keep_to_allowed(job: RunFunction) -> None:
    """Have this rank's real groups refuse all operations but those that the job allows, if it names any."""
    if job.allow is not None:
        from worldsize.launch.worker import allowed_gloo

        allowed_gloo.install(job.allow)


def choose_backend(job: RunFunction) -> str:
    """The backend that the job names; for auto, NCCL if there is a GPU for every rank, otherwise Gloo."""
    import torch

    if job.backend != "auto":
        return job.backend
    if job.allow is not None:
        return "gloo"
    return "nccl" if torch.cuda.device_count() >= job.world_size else "gloo"
