"""The stack of a rank that cannot run Python: while native code keeps the interpreter's lock, or after it has crashed.

Python's faulthandler writes it in C into the file of the rank's call log, behind the calls: on `SIGNAL`, and when
native code crashes. So a launcher can read it whatever the rank is doing.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from traceback import FrameSummary

from worldsize.launch.protocol.call_log import STACK_BYTES, STACK_START
from worldsize.launch.protocol.source import Line, own_lines

# one of those that programs may use as they like, signal(7), from the end that they use last; 0 where there are none
SIGNAL = signal.SIGRTMAX - 9 if sys.platform == "linux" else 0
_READY = b"ready\n"  # without which the signal would end the process
_HEAD = "(most recent call first):\n"
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u((?!d[89a-f])[0-9a-f]{4})|U(00(?:0[1-9a-f]|10)[0-9a-f]{4}))")
_PATIENCE_S, _PAUSE_S = 0.2, 0.005


def install(fd: int) -> None:
    """Have this process dump the stack of the thread concerned, which for `SIGNAL` is the main one, into the file."""
    os.lseek(fd, STACK_START, os.SEEK_SET)
    if SIGNAL:
        faulthandler.register(SIGNAL, file=fd, all_threads=False)
    if not faulthandler.is_enabled():  # as a user may have asked for by PYTHONFAULTHANDLER
        faulthandler.enable(file=fd, all_threads=False)
    os.write(fd, _READY)


def request(pids: dict[int, int]) -> None:
    """Ask processes, each by the file that it writes to, for their stacks; return once they are there, or soon."""
    waiting = {fd for fd, pid in pids.items() if _ask(pid, fd)}
    deadline_s = time.monotonic() + _PATIENCE_S
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
        waiting = {fd for fd in waiting if _HEAD not in _text(fd)}


def read(fd: int, quotes_files: bool) -> list[Line]:
    """The student's lines of the stack that was dumped last, outermost first; none without a dump.

    Lines have their text only with `quotes_files`: an untrusted rank may name any file.
    """
    found = list(_FRAME.finditer(_text(fd).rpartition(_HEAD)[2]))
    return own_lines([_frame(one, quotes_files) for one in reversed(found)])


def _ask(pid: int, fd: int) -> bool:
    if not SIGNAL or not _text(fd):
        return False
    try:
        os.kill(pid, SIGNAL)
    except OSError:  # it has ended
        return False
    return True


def _text(fd: int) -> str:
    return os.pread(fd, STACK_BYTES, STACK_START).rstrip(b"\0").decode("ascii", "replace")


def _frame(found: re.Match[str], quotes_files: bool) -> FrameSummary:
    filename, number, function = found.groups()
    text = None if quotes_files else ""  # None: it is looked up
    return FrameSummary(_unescaped(filename), int(number), _unescaped(function), lookup_line=False, line=text)


def _unescaped(text: str) -> str:
    """The text with the letters that faulthandler writes by number."""
    return _ESCAPED.sub(lambda found: chr(int(found[found.lastindex or 1], 16)), text)
