"""What went wrong on which rank, and how a run tells it."""

from __future__ import annotations

import linecache
import os
import signal
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

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
CELL_FILE = "torchrun_cell.py"  # what a %%torchrun cell is saved as
FAILURES_DIR = "WORLDSIZE_FAILURES_DIR"  # where the ranks of a script note how they failed
_MAX_LINES, _MAX_MESSAGE = 20, 4000  # a recursion's lines and a tensor's text would bury the rest
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass(frozen=True)
class Line:
    """One place in a source file, as a traceback names it."""

    filename: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        name = _name_of_cell(self.filename) if is_cell(self.filename) else os.path.basename(self.filename)
        place = f"{name}, line {self.number}"
        return place + (f", in {self.function}" if self.function.isidentifier() else "")


@dataclass(frozen=True)
class Failure:
    """How one rank ended before its time."""

    rank: int
    kind: str
    message: str
    lines: list[Line] = field(default_factory=list)
    time_ns: int = 0

    @property
    def is_victim(self) -> bool:
        """True when the rank only noticed that another one was gone."""
        return any(sign in self.message.lower() for sign in _VICTIM_SIGNS)

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
        lines = [
            Line(str(at["filename"]), int(at["number"]), str(at["function"]), str(at["text"])[:200])
            for at in fields.get("lines", [])[-_MAX_LINES:]
        ]
        kind, message = str(fields.get("kind", "failure"))[:200], str(fields.get("message", ""))[:_MAX_MESSAGE]
        return Failure(rank, kind, message, lines, int(fields.get("time_ns", 0)))


class RunError(RuntimeError):
    """A run that did not end well; its text is the whole report."""

    def __init__(self, report: str, failures: Sequence[Failure] = (), output: Sequence[str] = ()) -> None:
        super().__init__(report)
        self.failures, self.output = list(failures), list(output)

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints: the report, without a stack of the launcher's own frames."""
        return [f"{type(self).__name__}: {self}"]


class RankFailed(RunError):
    """A rank raised, exited or was killed; `failures[0]` is the culprit."""


class RunTimeout(RunError):
    """The ranks were not done in time; `failures` says where each unfinished one stood."""


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
        return Failure(rank, name, reasons.get(number, "the process was ended by this signal"), [], time_ns)
    code = os.WEXITSTATUS(status)
    return Failure(rank, f"exit code {code}", "the process ended without returning a value", [], time_ns)


def own_lines(frames: Iterable[traceback.FrameSummary]) -> list[Line]:
    """The last frames that are not the launcher's or a library's; the innermost of a library when there is none."""
    lines = [Line(f.filename, f.lineno or 0, f.name, f.line or "") for f in frames if not _is_ours(f.filename)]
    return [line for line in lines if _is_own(line.filename)][-_MAX_LINES:] or lines[-1:]


def lines_of(frame: FrameType) -> list[Line]:
    """The student's lines of a running frame, outermost first."""
    return own_lines(traceback.extract_stack(frame))


def is_cell(filename: str) -> bool:
    """True for the invented file name of a notebook cell."""
    return (
        (filename.startswith("<") and not filename.startswith("<frozen"))
        or "ipykernel_" in filename
        or os.path.basename(filename) == CELL_FILE
    )


def cell_sources() -> dict[str, str]:
    """The text of every cell run so far by its invented file name, so that a rank's traceback can quote it."""
    return {
        name: "".join(entry[2]) for name, entry in list(linecache.cache.items()) if len(entry) == 4 and is_cell(name)
    }


def remember_sources(sources: dict[str, str]) -> None:
    """Makes tracebacks of this process quote these cells."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def tell(failures: Sequence[Failure], world_size: int) -> str:
    """The report of a failed run: the culprit with its lines, then the others in one sentence each."""
    culprit, *others = order(failures)
    parts = [f"Rank {culprit.rank} of {world_size} failed with {culprit.headline}", *quote(culprit.lines)]
    victims = sorted(other.rank for other in others if other.is_victim)
    alike = sorted(other.rank for other in others if not other.is_victim and other.headline == culprit.headline)
    if alike:
        parts.append(f"{name_ranks(alike)} failed in the same way.")
    for other in others:
        if not other.is_victim and other.rank not in alike:
            parts.append(f"Rank {other.rank} failed too, with {other.headline}")
    if victims:
        parts.append(f"{name_ranks(victims)} lost the connection because of it.")
    return "\n".join(parts)


def tell_hang(standing: Sequence[Failure], returned: Sequence[int], timeout_s: float) -> str:
    """The report of a run that did not end: who had returned, and where each other rank stood."""
    parts = [f"The ranks were not done after {timeout_s:g} s."]
    if returned:
        parts.append(f"{name_ranks(returned)} had returned.")
    for one in standing:
        parts += [f"Rank {one.rank} was still at", *(quote(one.lines) or ["  a place that it did not tell"])]
    return "\n".join(parts)


def order(failures: Sequence[Failure]) -> list[Failure]:
    """The failures with the culprit first: the earliest that is not a mere victim."""
    return sorted(failures, key=lambda failure: (failure.is_victim, failure.time_ns))


def quote(lines: Sequence[Line]) -> list[str]:
    """A traceback's lines as text, indented."""
    quoted = []
    for line in lines:
        quoted.append(f"  {line}")
        if line.text:
            quoted.append(f"    {line.text.strip()}")
    return quoted


def name_ranks(ranks: Sequence[int]) -> str:
    """'Rank 1' or 'Ranks 0, 2 and 3'."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _is_ours(filename: str) -> bool:
    return filename.startswith((_PACKAGE, "<frozen"))


def _is_own(filename: str) -> bool:
    return "site-packages" not in filename and "/lib/python" not in filename


def _name_of_cell(filename: str) -> str:
    return filename.strip("<>") if filename.startswith("<cell ") else "the cell"
