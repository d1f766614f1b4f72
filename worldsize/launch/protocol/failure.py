"""How one rank failed: by an exception, an exit, a signal."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from worldsize.launch.protocol.fields import Fields, integer, items, text
from worldsize.launch.protocol.source import MAX_LINES, Line, own_lines

# torch's messages on a rank whose peer died: such a rank is a victim, never the culprit
_VICTIM_SIGNS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "read error",
    "write error",
    "nccl communicator was aborted",
)
_MAX_KIND, _MAX_MESSAGE = 200, 4000  # a tensor's text would bury the rest


class Cause(Enum):
    """How a failure was noticed. All but the first were seen from outside the rank, which cannot forge them."""

    REPORTED = "the rank reported it"
    EXIT = "the process exited"
    SIGNAL = "a signal ended the process"
    LIMIT = "it exceeded its quota"
    MESSAGE = "it sent something other than a message"
    CONDUCTOR = "an emulated cluster ended it: a planned fault, or an impossible message"
    UNFINISHED = "it was not done when the run was stopped"


@dataclass(frozen=True)
class Failure:
    """How one rank failed."""

    rank: int
    kind: str
    message: str
    lines: list[Line] = field(default_factory=list[Line])
    time_ns: int = 0
    cause: Cause = Cause.REPORTED

    @property
    def is_victim(self) -> bool:
        """True when the rank only noticed that another one was gone."""
        return any(sign in self.message.lower() for sign in _VICTIM_SIGNS)

    @property
    def is_symptom(self) -> bool:
        """True for torch's error when ranks call different things, which is not an error of any one rank."""
        return self.is_victim or self.kind == "SIGABRT" or "gloo" in self.message.lower()

    @property
    def headline(self) -> str:
        """One line: the kind of failure and its message."""
        return f"{self.kind}: {self.message}" if self.message else self.kind

    def to_fields(self) -> dict[str, Any]:
        """The failure as JSON fields, without its rank and its cause, which the rank does not decide."""
        lines = [vars(line) for line in self.lines]
        return {"kind": self.kind, "message": self.message, "lines": lines, "time_ns": self.time_ns}

    @staticmethod
    def from_fields(rank: int, fields: Fields) -> Failure:
        """The failure whose `to_fields` these are, reported by the rank; text is cut, because a rank may send anything.

        Raises:
            ValueError: the fields are not a failure's.
        """
        lines = [Line.from_fields(line) for line in items(fields, "lines")[-MAX_LINES:]]
        kind, message = text(fields, "kind", _MAX_KIND), text(fields, "message", _MAX_MESSAGE)
        return Failure(rank, kind, message, lines, integer(fields, "time_ns"))


def of_exception(rank: int, error: BaseException, time_ns: int) -> Failure:
    """The failure of a rank that raised, its traceback cut to the student's own lines."""
    if isinstance(error, SystemExit):
        kind, message = f"sys.exit({error.code!r})", "the function ended the process instead of returning"
    else:
        kind, message = type(error).__name__, _text_of(error)[:_MAX_MESSAGE]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        at = Line(error.filename, error.lineno, "", (error.text or "").strip())
        return Failure(rank, kind, error.msg, [at], time_ns)
    return Failure(rank, kind, message, own_lines(traceback.extract_tb(error.__traceback__)), time_ns)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the error's own text may be broken
        return "an exception that cannot be printed"


def of_status(rank: int, status: int, time_ns: int) -> Failure:
    """The failure of a rank whose process ended with this wait status: by a signal, or by an exit without a report."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        reasons: dict[int, str] = {
            signal.SIGKILL: "something killed it; out of memory is the usual reason",
            signal.SIGSEGV: "native code accessed invalid memory",
            signal.SIGABRT: "native code aborted; on Gloo that happens when ranks call different collectives or sizes",
        }
        reason = reasons.get(number, "the process was ended by this signal")
        return Failure(rank, name, reason, [], time_ns, Cause.SIGNAL)
    reason = "the process ended without returning a value"
    return Failure(rank, f"exit code {os.WEXITSTATUS(status)}", reason, [], time_ns, Cause.EXIT)


def order(failures: Sequence[Failure]) -> list[Failure]:
    """The failures with the culprit first: the earliest that is not a victim's."""
    return sorted(failures, key=lambda failure: (failure.is_victim, failure.time_ns))
