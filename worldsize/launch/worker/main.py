"""One rank: receives a function, runs it in a process group, sends back what it returned or why it did not."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from worldsize import framing
from worldsize.launch.protocol import codec, failure, source
from worldsize.launch.protocol.call_log import CallLog
from worldsize.launch.protocol.process import NETWORKS_OF_RANKS, die_with_parent, end_own_group, enter_network
from worldsize.launch.worker import call_tracer, spans


def main(sock: socket.socket, output_fd: int) -> None:
    """Serves the one job that comes over `sock`, then ends the process; never returns."""
    die_with_parent()
    _take_output(output_fd)
    link, job, payload = take_job(sock)
    serve(link, job, payload, join)
    # leaving now would cut the connections of ranks that are still at work, and the interpreter's own way out
    # aborts now and then when a process group is alive (torch 2.13 on Gloo)
    while True:
        signal.pause()


def take_job(sock: socket.socket) -> tuple[Link, dict[str, Any], bytes]:
    """The link to the launcher, the job and its payload; from here on calls of torch.distributed are noted."""
    received = framing.receive(sock)
    if received is None:
        os._exit(1)
    job, payload, (call_log_fd, *wire_fd) = received
    noted = call_tracer.install(CallLog(call_log_fd))
    if wire_fd:
        job["wire_fd"], job["observer"] = wire_fd[0], noted
    link = Link(sock)
    threading.Thread(target=link.serve, daemon=True, name="control").start()
    return link, job, payload


def serve(link: Link, job: dict[str, Any], payload: bytes, join: Callable[[dict[str, Any]], str]) -> bool:
    """True when the job's function came back; what it returned, or why it did not, has then been reported."""
    try:
        prepare(job)
        link.send("joined", backend=join(job))
        start_s = time.monotonic()
        value = _work(payload)
        if "wire" in job:
            job["wire"].leave()
        value = codec.encode(value)
        _flush()  # before the launcher hears that this rank is done, and ends it
        link.tell_events()
        link.send("done", value, spans=spans.drain(), duration_s=time.monotonic() - start_s)
        return True
    except BaseException as error:  # a rank reports whatever ends it, also SystemExit
        link.report(job["rank"], error)
        return False


class Link:
    """The socket to the launcher: one thread answers its questions, the other reports."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._main_thread = threading.get_ident()

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Sends one message."""
        with self._lock:
            framing.send(self._sock, kind, body, **fields)

    def tell_events(self) -> None:
        """Tells the times of this rank's calls and what it has profiled."""
        for batch in spans.drain_events():
            self.send("events", events=batch)

    def report(self, rank: int, error: BaseException) -> None:
        """Tells how this rank failed."""
        time_ns = time.monotonic_ns()
        _flush()
        self.send("failed", failure=failure.of_exception(rank, error, time_ns).to_fields(), spans=spans.drain())

    def serve(self) -> None:
        """Answers "where" with the line that runs now; ends the process when the launcher hangs up."""
        try:
            while (message := framing.receive(self._sock)) is not None:
                if message[0]["kind"] == "leave":
                    os._exit(0)
                if message[0]["kind"] == "where":
                    lines = source.lines_of(sys._current_frames()[self._main_thread])
                    self.send("where", lines=[vars(line) for line in lines], **call_tracer.native())
        finally:
            end_own_group()
            os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the function may have put anything in its place
            stream.flush()


def _take_output(fd: int) -> None:
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    # the nursery's own streams were opened on another kind of file, which they remember
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def prepare(job: dict[str, Any]) -> None:
    """Makes this process look as the launcher does: environment, folder, search path, cells."""
    os.environ.update(job["env"])
    if networks := os.environ.pop(NETWORKS_OF_RANKS, ""):  # not for what this rank may start itself
        enter_network(networks.split(",")[job["rank"]])
    local_rank = job["rank"] % job.get("local_world_size", job["world_size"])
    os.environ.update(RANK=str(job["rank"]), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(job["world_size"]))
    if "cwd" in job:
        os.chdir(job["cwd"])
        sys.path[:] = job["path"]
    random.seed()  # forked ranks would all draw the same; torch's default seed is a constant anyway
    source.remember_sources(job["sources"])

    import torch

    torch.set_num_threads(job["num_threads"])


def _work(payload: bytes) -> Any:
    unpickler = pickle.Unpickler(io.BytesIO(payload))
    (fn, args), own = unpickler.load(), unpickler.load()
    return fn(*args, *own)


def join(job: dict[str, Any]) -> str:
    """The backend of the process group that this rank has joined."""
    if "wire_fd" in job:
        return _join_emulated(job)
    import torch
    import torch.distributed as dist

    backend = choose_backend(job)
    device = None
    if backend == "nccl":
        device = torch.device("cuda", job["rank"])
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.FileStore(  # pyright: ignore[reportPrivateImportUsage]
            job["store"], job["world_size"]
        ),
        rank=job["rank"],
        world_size=job["world_size"],
        timeout=timedelta(seconds=job["timeout_s"] + 60),
        device_id=device,
    )
    return backend


def _join_emulated(job: dict[str, Any]) -> str:
    import torch.distributed as dist

    from worldsize.emulate import backend

    store = dist.FileStore(  # pyright: ignore[reportPrivateImportUsage]
        job["store"], job["world_size"]
    )
    sock = socket.socket(fileno=job["wire_fd"])
    job["wire"] = backend.join(
        sock, job["rank"], job["world_size"], store, job["allow"], job["compute"], job["observer"]
    )
    spans.stop(job["wire"].span)
    return backend.BACKEND


def choose_backend(job: dict[str, Any]) -> str:
    """The backend that the job names; for auto, NCCL with a GPU for every rank, else Gloo."""
    import torch

    if job["backend"] != "auto":
        return job["backend"]
    return "nccl" if torch.cuda.device_count() >= job["world_size"] else "gloo"
