"""A real kernel, driven as a front end drives it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

PATIENCE_S = 90


@dataclass
class Cell:
    """What a running cell has sent so far."""

    message_id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    @property
    def text(self) -> str:
        """The text that it printed to stdout."""
        return "".join(one["content"]["text"] for one in self.of("stream") if one["content"]["name"] == "stdout")

    @property
    def error(self) -> str:
        """The error report; empty if it did not fail."""
        return "".join(line for one in self.of("error") for line in one["content"]["traceback"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its messages of one kind."""
        return [one for one in self.messages if one["msg_type"] == kind]


class Kernel:
    """A kernel and the client that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), stdin=None)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    @property
    def process(self) -> psutil.Process:
        """The kernel's process."""
        return psutil.Process(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def start(self, code: str) -> Cell:
        """Start a cell with this code, and return it."""
        return Cell(self.client.execute(code))

    def run(self, code: str) -> Cell:
        """Run a cell with this code to its end, and return it."""
        cell = self.start(code)
        self.wait(cell, lambda: cell.is_done)
        return cell

    def wait(self, cell: Cell, condition: Any, within_s: float = PATIENCE_S) -> None:
        """Receive the cell's messages until the condition holds."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not in time; the cell printed {cell.text[-2000:]!r} {cell.error}"
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") == cell.message_id:
                cell.messages.append(message)
                is_idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
                cell.is_done = cell.is_done or is_idle

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@contextmanager
def kernel(folder: Path) -> Iterator[Kernel]:
    """A kernel that ends with the block."""
    one = Kernel(folder)
    try:
        yield one
    finally:
        one.close()
