"""The stack of a rank that cannot run Python because native code holds the interpreter's lock or has crashed.

Python's faulthandler writes it in C to the file of the rank's call log, after the calls: on `SIGNAL`, and when
native code crashes. The launcher can therefore read it whatever the rank is doing.
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
from worldsize.source import Line, own_lines

# a real-time signal, signal(7), near the end, which programs use last; 0 where there are none
SIGNAL = signal.SIGRTMAX - 9 if sys.platform == "linux" else 0
_READY = b"ready\n"  # until this is written, the signal would end the process
_HEAD = "(most recent call first):\n"
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u((?!d[89a-f])[0-9a-f]{4})|U(00(?:0[1-9a-f]|10)[0-9a-f]{4}))")
_PATIENCE_S, _PAUSE_S = 0.2, 0.005


def install(fd: int) -> None:
    """Install handlers that dump the stack of the crashed thread, or on `SIGNAL` of the main thread, to the file."""
    os.lseek(fd, STACK_START, os.SEEK_SET)
    if SIGNAL:
        faulthandler.register(SIGNAL, file=fd, all_threads=False)
    if not faulthandler.is_enabled():  # a user may have enabled it with PYTHONFAULTHANDLER
        faulthandler.enable(file=fd, all_threads=False)
    os.write(fd, _READY)


def request(pids: dict[int, int]) -> None:
    """Make processes, given by their call logs' files, dump their stacks; return once they have, or time is up."""
    waiting = {fd for fd, pid in pids.items() if _ask(pid, fd)}
    deadline_s = time.monotonic() + _PATIENCE_S
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
        waiting = {fd for fd in waiting if _HEAD not in _text(fd)}


def read(fd: int, quotes_files: bool) -> list[Line]:
    """Read the student's lines of the latest stack dump, outermost first; none without a dump.

    Lines include their text only with `quotes_files`: an untrusted rank may name any file.
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
    text = None if quotes_files else ""  # None: it is looked up in the file
    return FrameSummary(_unescaped(filename), int(number), _unescaped(function), lookup_line=False, line=text)


def _unescaped(text: str) -> str:
    """Replace faulthandler's numeric escapes with the characters they stand for."""
    return _ESCAPED.sub(lambda found: chr(int(found[found.lastindex or 1], 16)), text)
