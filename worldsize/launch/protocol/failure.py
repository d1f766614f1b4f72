"""How one rank ended before its time: by an exception, an exit, a signal."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from worldsize.launch.protocol.source import MAX_LINES, Line, own_lines

# what torch says on a rank whose peer died: such a rank is a victim, never the culprit
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
_MAX_MESSAGE = 4000  # a tensor's text would bury the rest


@dataclass(frozen=True)
class Failure:
    """How one rank ended before its time."""

    rank: int
    kind: str
    message: str
    lines: list[Line] = field(default_factory=list)
    time_ns: int = 0
    signal_number: int = 0  # that ended the process, as its parent saw: never what a rank says of itself

    @property
    def is_victim(self) -> bool:
        """True when the rank only noticed that another one was gone."""
        return any(sign in self.message.lower() for sign in _VICTIM_SIGNS)

    @property
    def is_symptom(self) -> bool:
        """True for what torch does when ranks call different things: it is nobody's own error."""
        return self.is_victim or self.kind == "SIGABRT" or "gloo" in self.message.lower()

    @property
    def headline(self) -> str:
        """One line: the kind of failure and what it said."""
        return f"{self.kind}: {self.message}" if self.message else self.kind

    def to_fields(self) -> dict[str, Any]:
        """The failure as JSON fields."""
        return asdict(self)

    @staticmethod
    def from_fields(rank: int, fields: dict[str, Any]) -> Failure:
        """The failure that `to_fields` gave; text is cut, because a rank may send anything."""
        lines = [Line.from_fields(at) for at in fields.get("lines", [])[-MAX_LINES:]]
        kind, message = str(fields.get("kind", "failure"))[:200], str(fields.get("message", ""))[:_MAX_MESSAGE]
        return Failure(rank, kind, message, lines, int(fields.get("time_ns", 0)))


def of_exception(rank: int, error: BaseException, time_ns: int) -> Failure:
    """The failure that an exception on a rank is, its traceback cut to the student's own lines."""
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
    except Exception:  # its own text may be what is broken
        return "an exception that cannot be printed"


def of_status(rank: int, status: int, time_ns: int) -> Failure:
    """The failure that a wait status is: killed by a signal, or an exit without a word."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        reasons: dict[int, str] = {
            signal.SIGKILL: "something killed it; out of memory is the usual reason",
            signal.SIGSEGV: "native code touched memory that is not its own",
            signal.SIGABRT: "native code gave up; on Gloo, ranks end so that call different collectives or sizes",
        }
        return Failure(rank, name, reasons.get(number, "the process was ended by this signal"), [], time_ns, number)
    code = os.WEXITSTATUS(status)
    return Failure(rank, f"exit code {code}", "the process ended without returning a value", [], time_ns)


def order(failures: Sequence[Failure]) -> list[Failure]:
    """The failures with the culprit first: the earliest that is not a mere victim."""
    return sorted(failures, key=lambda failure: (failure.is_victim, failure.time_ns))
