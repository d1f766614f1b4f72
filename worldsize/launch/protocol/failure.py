"""The failure of one rank: an exception, an exit or a signal."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

from msgspec import Meta

from worldsize.source import MAX_LINES, Line, cut_line, is_ours, own_lines

# torch's messages on a rank whose peer died: that rank is a victim, never the culprit; docs/patches.md lists the tests
OF_GLOO = ("Connection closed by peer", "Read error", "Socket closed")
OF_SYSTEM = {errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE}  # Gloo and the store quote their texts
OF_NCCL = ("remote process exited", "NCCL communicator was aborted")
_VICTIM_SIGNS = [sign.lower() for sign in (*OF_GLOO, *map(os.strerror, OF_SYSTEM), *OF_NCCL)]
CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")  # signals on which a rank first dumps its stack
_MAX_KIND, _MAX_MESSAGE = 200, 4000  # characters; a printed tensor would hide the rest
_CUT = " ..."


class FailureCause(Enum):
    """How a failure was noticed. All but the first were seen from outside the rank: it can cause, not forge them."""

    REPORTED = "the rank reported it"
    EXIT = "the process exited"
    SIGNAL = "a signal ended the process"
    LIMIT = "it exceeded its quota"
    MESSAGE = "it sent something other than a message"
    CONDUCTOR = "an emulated cluster ended it: a planned fault, or an impossible message"
    FORBIDDEN = "an emulated cluster had refused one of its calls"
    MISMATCH = "its call of a collective differs from those of other ranks"
    UNFINISHED = "it was not done when the run was stopped"


@dataclass(frozen=True)
class Failure:
    """The failure of one rank.

    `torch_message` is torch's own message, if the failure is an error raised by torch or caused by one: a program's own
    messages never decide which rank is a victim.
    """

    rank: int
    kind: Annotated[str, Meta(max_length=_MAX_KIND)]
    message: Annotated[str, Meta(max_length=_MAX_MESSAGE)]
    lines: Annotated[list[Line], Meta(max_length=MAX_LINES)] = field(default_factory=list[Line])
    time_ns: int = 0
    cause: FailureCause = FailureCause.REPORTED
    torch_message: Annotated[str, Meta(max_length=_MAX_MESSAGE)] = ""

    @property
    def is_victim(self) -> bool:
        """Whether the rank failed only because another rank was gone."""
        return any(sign in self.torch_message.lower() for sign in _VICTIM_SIGNS)

    @property
    def is_symptom(self) -> bool:
        """True for torch's error when ranks call different things, which is not an error of any one rank."""
        is_aborted = self.cause is FailureCause.SIGNAL and self.kind == "SIGABRT"
        return self.is_victim or is_aborted or "gloo" in self.torch_message.lower()

    @property
    def headline(self) -> str:
        """One line: the kind of failure and its message."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


def of_exception(rank: int, error: BaseException, time_ns: int) -> Failure:
    """Describe the failure of a rank that raised, its traceback cut to the student's own lines."""
    if isinstance(error, SystemExit):
        kind, message = f"sys.exit({error.code!r})", "the function ended the process instead of returning"
    else:
        kind, message = type(error).__name__, _text_of(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        at = cut_line(error.filename, error.lineno, "", (error.text or "").strip())
        return cut(Failure(rank, kind, error.msg, [at], time_ns))
    lines = own_lines(traceback.extract_tb(error.__traceback__))
    return cut(Failure(rank, kind, message, lines, time_ns, torch_message=_torch_message(error)))


def cut(failure: Failure) -> Failure:
    """Truncate the texts of a failure to what may be sent."""
    return replace(
        failure,
        kind=failure.kind[:_MAX_KIND],
        message=_cut(failure.message),
        lines=failure.lines[-MAX_LINES:],
        torch_message=failure.torch_message[:_MAX_MESSAGE],
    )


def _cut(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - len(_CUT)] + _CUT


def _torch_message(error: BaseException) -> str:
    """Torch's message in the root cause of this error; empty if the root cause is not an error of torch's."""
    seen: set[int] = set()
    while (before := error.__cause__ or error.__context__) is not None and id(error) not in seen:
        seen.add(id(error))
        error = before
    return _text_of(error) if _is_torchs(error) else ""


def _is_torchs(error: BaseException) -> bool:
    """Whether torch defines the error's type or raised it itself, rather than the program that called it."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    if type(error).__module__.partition(".")[0] == "torch":
        return True
    innermost = traceback.extract_tb(error.__traceback__)[-1:]  # C++ has no Python frames, so its caller's is the last
    folder = os.path.dirname(str(torch.__file__)) + os.sep
    return any(frame.filename.startswith(folder) or is_ours(frame.filename) for frame in innermost)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the error's own `__str__` may fail
        return "an exception that cannot be printed"


def of_status(rank: int, status: int, time_ns: int) -> Failure:
    """Describe the failure of a rank that ended with this wait status: a signal, or an exit without a report."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        reasons: dict[int, str] = {
            signal.SIGKILL: "something killed it; out of memory is the usual reason",
            signal.SIGSEGV: "native code accessed invalid memory",
            signal.SIGABRT: "native code aborted; on Gloo that happens when ranks call different collectives or sizes",
            signal.SIGXFSZ: "a file grew past the limit of its size",
        }
        reason = reasons.get(number, "the process was ended by this signal")
        return Failure(rank, name, reason, [], time_ns, FailureCause.SIGNAL)
    reason = "the process ended without returning a value"
    return Failure(rank, f"exit code {os.WEXITSTATUS(status)}", reason, [], time_ns, FailureCause.EXIT)


def order(failures: Sequence[Failure]) -> list[Failure]:
    """Sort the failures, culprit first: the earliest failure of a rank that is not a victim."""
    return sorted(failures, key=lambda failure: (failure.is_victim, failure.time_ns))
