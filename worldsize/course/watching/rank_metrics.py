"""A rank's metrics while it trains: for Prometheus, which scrapes them, and for TensorBoard, which reads a file."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

JOB = "ranks"


class RankMetrics:
    """Metrics of one rank on a free port, and a file in `folder` through which Prometheus finds them.

    The file names the rank's node by the label `Hostname`, as NVIDIA's dcgm-exporter names the node of a GPU: by
    $NODE_NAME, which a pod must be given, or else by the host's name.

    Until its first step the rank exports that it is in the phase "start"; `busy` announces other work that is no step.
    It listens at `host`, a name or IPv4 address of this machine: on a cluster, the name by which Prometheus reaches the
    node. By default only the machine itself can connect, because anyone who can connect can read the metrics.
    With `tensorboard`, a folder, the same numbers are also written there, as the run `rank0`, `rank1`, ...

    Raises:
        RuntimeError: prometheus_client is not installed, or TensorBoard is requested and not installed.
    """

    def __init__(
        self, rank: int, folder: Path | str, tensorboard: Path | str | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
        except ImportError:
            raise RuntimeError("prometheus_client is not installed: pip install prometheus_client") from None
        registry = CollectorRegistry()
        self._loss = Gauge("train_loss", "Loss of the last step.", registry=registry)
        self._step_s = Gauge("train_step_seconds", "Time of the last step.", registry=registry)
        self._compute_s = Gauge("train_compute_seconds", "The rank's own work in it, without waits.", registry=registry)
        self._steps = Counter("train_steps", "Steps since the start.", registry=registry)
        self._tokens = Counter("train_tokens", "Tokens of this rank since the start.", registry=registry)
        self._last_step = Gauge(
            "train_last_step_timestamp_seconds", "When the last step, or other phase, ended.", registry=registry
        )
        self._phase_start = Gauge(
            "train_phase_start_timestamp_seconds", "When work began that is no step.", ["phase"], registry=registry
        )
        self._num_steps = 0
        self._phase = ""
        self._restart_clock()
        self._writer = _summary_writer(Path(tensorboard, f"rank{rank}")) if tensorboard else None
        self._server, self._thread = start_http_server(0, host, registry=registry)
        self.address = f"{host}:{self._server.server_port}"
        self._target = Path(folder, f"rank{rank}.json")
        self._announce(rank)

    def __enter__(self) -> RankMetrics:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def step(self, loss: float, step_s: float, num_tokens: int = 0, compute_s: float | None = None) -> None:
        """Record a step that has just ended; `compute_s` is the part of `step_s` without waits for other ranks."""
        self._loss.set(loss)
        self._step_s.set(step_s)
        self._compute_s.set(step_s if compute_s is None else compute_s)
        self._steps.inc()
        self._num_steps += 1
        self._tokens.inc(num_tokens)
        self._restart_clock()
        if self._writer:
            self._writer.add_scalar("loss", loss, self._num_steps)
            self._writer.add_scalar("step_seconds", step_s, self._num_steps)

    @contextmanager
    def busy(self, phase: str) -> Iterator[None]:
        """Announce work in which no step ends, such as "save", so that it alarms nobody unless it takes very long.

        Every rank that waits for the work must announce it, also one that has nothing to do in it.
        """
        outer, self._phase = self._phase, phase
        self._restart_clock()
        try:
            yield
        finally:
            self._phase = outer
            self._restart_clock()

    def close(self) -> None:
        """Stop answering; Prometheus then stops scraping this rank, which has ended and not died."""
        self._target.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._writer:
            self._writer.close()

    def _restart_clock(self) -> None:
        """Note that the rank makes progress now, and in which phase it is."""
        self._last_step.set_to_current_time()  # first: no scrape may find an old time and no phase
        self._phase_start.clear()
        if phase := self._phase or ("" if self._num_steps else "start"):
            self._phase_start.labels(phase).set_to_current_time()

    def _announce(self, rank: int) -> None:
        """Write the file through which Prometheus finds this rank, atomically."""
        node = os.environ.get("NODE_NAME") or socket.gethostname()
        entry = {"targets": [self.address], "labels": {"job": JOB, "rank": str(rank), "Hostname": node}}
        self._target.parent.mkdir(parents=True, exist_ok=True)
        part = self._target.with_suffix(".part")
        part.write_text(json.dumps([entry]))
        part.replace(self._target)


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RuntimeError("TensorBoard is not installed: pip install tensorboard") from None
    return SummaryWriter(str(folder), flush_secs=1)
