"""Detection of programs on paper that ask how many ranks a node has: on other clusters they may behave differently."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from worldsize.memory.program_lines import is_program, quote_line

_NAME = "LOCAL_WORLD_SIZE"
_OF_THE_ENVIRONMENT = ("os", "collections.abc")  # modules whose functions read the environment for a program


def report_questions(report: Callable[[str], None]) -> None:
    """Report each line of the program that asks for a node's number of ranks or GPUs.

    Torch's own questions do not matter on paper; the answer to them is that there is no GPU.
    """
    read, num_gpus = os._Environ.__getitem__, torch.cuda.device_count

    @functools.wraps(read)
    def getitem(environ: Any, key: Any) -> Any:
        if key == _NAME and (line := _asking_line()):
            report(line)
        return read(environ, key)

    def device_count() -> int:
        if not (line := _asking_line()):
            return num_gpus()
        report(line)
        return int(read(os.environ, _NAME))

    os._Environ.__getitem__ = getitem
    torch.cuda.device_count = device_count


def _asking_line() -> str:
    """Return the line that asks; empty if it is not in the program."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") in _OF_THE_ENVIRONMENT and frame.f_back:
        frame = frame.f_back
    return quote_line(frame.f_code.co_filename, frame.f_lineno) if is_program(frame.f_code.co_filename) else ""
