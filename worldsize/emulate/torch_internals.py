"""The undocumented parts of torch that emulation uses. Each has a test that fails when torch changes it."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_BACKWARD = "_engine_run_backward"  # the Python function around the C++ that runs backward

Work: type[Any] = dist._Work  # pyright: ignore[reportPrivateImportUsage]  # what torch takes for the handle of a call, and can be subclassed in Python


def is_main_in_native_wait() -> bool:
    """True when the main thread is in C++'s backward or waits for a future there."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and (
        frame.f_code.co_name == _BACKWARD or frame.f_code.co_filename == torch.futures.__file__
    )


def is_in_backward() -> bool:
    """True while autograd's engine runs in this thread."""
    return torch._C._current_graph_task_id() != -1


def call_when_backward_ends(callback: Callable[[], None]) -> None:
    """Have autograd's engine call this at the end of the current backward, before backward returns."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
