"""One rank: receives a function, runs it in a process group, sends back what it returned or why it did not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from worldsize.launch import codec, failure, frames, record
from worldsize.launch.process import die_with_parent


def main(sock: socket.socket, output_fd: int) -> None:
    """Serves the one job that comes over `sock`, then ends the process; never returns."""
    die_with_parent()
    _take_output(output_fd)
    received = frames.receive(sock)
    if received is None:
        os._exit(1)
    job, payload, _ = received
    link = _Link(sock)
    threading.Thread(target=link.serve, daemon=True, name="control").start()
    try:
        value = codec.encode(_work(job, payload, link))
        _flush()  # before the launcher hears that this rank is done, and ends it
        link.send("done", value, spans=record.drain())
    except BaseException as error:  # a rank reports whatever ends it, also SystemExit
        time_ns = time.monotonic_ns()
        _flush()
        told = failure.of_exception(job["rank"], error, time_ns).to_fields()
        link.send("failed", failure=told, spans=record.drain())
    # leaving now would cut the connections of ranks that are still at work, and the interpreter's own way out
    # aborts now and then when a process group is alive (torch 2.13 on Gloo)
    while True:
        signal.pause()


class _Link:
    """The socket to the launcher: one thread answers its questions, the other reports."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._main_thread = threading.get_ident()

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        with self._lock:
            frames.send(self._sock, kind, body, **fields)

    def serve(self) -> None:
        """Answers "where" with the line that runs now; ends the process when the launcher hangs up."""
        try:
            while (message := frames.receive(self._sock)) is not None:
                if message[0]["kind"] == "where":
                    lines = failure.lines_of(sys._current_frames()[self._main_thread])
                    self.send("where", lines=[vars(line) for line in lines])
        finally:
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


def _work(job: dict[str, Any], payload: bytes, link: _Link) -> Any:
    os.environ.update(job["env"])
    rank, world_size = job["rank"], job["world_size"]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    if "cwd" in job:
        os.chdir(job["cwd"])
        sys.path[:] = job["path"]
    random.seed()  # forked ranks would all draw the same; torch's default seed is a constant anyway
    failure.remember_sources(job["sources"])

    import cloudpickle
    import torch

    torch.set_num_threads(job["num_threads"])
    backend = _join(job)
    link.send("joined", backend=backend)
    fn, args = cloudpickle.loads(payload)
    return fn(*args)


def _join(job: dict[str, Any]) -> str:
    """The backend of the process group that this rank has joined: NCCL with a GPU for every rank, else Gloo."""
    import torch
    import torch.distributed as dist

    backend = job["backend"]
    if backend == "auto":
        backend = "nccl" if torch.cuda.device_count() >= job["world_size"] else "gloo"
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
