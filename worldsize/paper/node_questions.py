"""Detection of programs on paper that ask about their node: on other clusters they may behave differently."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from worldsize.memory.program_lines import is_program, quote_line

_NAME = "LOCAL_WORLD_SIZE"
_OF_THE_ENVIRONMENT = ("os", "collections.abc")  # modules whose functions read the environment for a program


def report_questions(report: Callable[[str], None]) -> None:
    """Report each line of the program that asks the environment for a node's number of ranks.

    Torch's own questions do not matter on paper.
    """
    read = os._Environ.__getitem__

    @functools.wraps(read)
    def getitem(environ: Any, key: Any) -> Any:
        if key == _NAME and (line := _asking_line()):
            report(line)
        return read(environ, key)

    os._Environ.__getitem__ = getitem


def _asking_line() -> str:
    """Return the line that asks; empty if it is not in the program."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") in _OF_THE_ENVIRONMENT and frame.f_back:
        frame = frame.f_back
    return quote_line(frame.f_code.co_filename, frame.f_lineno) if is_program(frame.f_code.co_filename) else ""
