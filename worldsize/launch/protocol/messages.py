"""Every message between a launcher, its forkserver and its ranks, with the types and bounds that its reader checks.

On the wire a message is a JSON header whose kind is the class's name; open files and a body may accompany it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from worldsize.emulate.protocol.messages import Emulated
from worldsize.launch.protocol.call_log import WAITING, Call
from worldsize.launch.protocol.events import SentEvent
from worldsize.launch.protocol.failure import Failure, FailureCause
from worldsize.memory.capacity import Capacity
from worldsize.memory.use import MemoryUse
from worldsize.message import Count, Finite, Message, Word, read
from worldsize.source import MAX_LINES, Line

MAX_EVENTS = 2_000  # in one message
Span = tuple[Word, Word, Finite, Finite]  # name, kind, start and end in seconds of the monotonic clock


# launcher to forkserver


class Fork(Message, frozen=True):
    """Fork a rank; accompanied by two open files: the rank's socket and the pipe for its output."""

    job: int


class Kill(Message, frozen=True):
    """Kill the ranks of these jobs."""

    jobs: list[int]


class Sweep(Message, frozen=True):
    """Remove all processes and files that ranks left in a jail, except `/tmp/<kept>`."""

    kept: str = ""


# forkserver to launcher


class Warm(Message, frozen=True):
    """The forkserver has imported what ranks need."""

    num_gpus: int


class Forked(Message, frozen=True):
    """A job's rank has been forked."""

    job: int
    pid: int


class Exited(Message, frozen=True):
    """A job's rank has ended, with this wait status."""

    job: int
    status: int


class Swept(Message, frozen=True):
    """The jail has been swept."""


# launcher to rank


class WorkingDirectory(Struct, frozen=True):
    """The folder and the search path of the launcher, which a rank on the same machine shares."""

    cwd: str
    path: list[str]


class RunFunction(Message, frozen=True):
    """Run the function in the body; the files of the call log and, if emulated, of the conductor come along."""

    rank: int
    world_size: int
    backend: str
    timeout_s: float
    num_threads: int
    env: Mapping[str, str]
    sources: Mapping[str, str]  # file name -> text of a notebook cell
    store: str = ""  # the file of the store of forked ranks
    network: str = ""  # the network namespace from which the rank joins
    place: WorkingDirectory | None = None
    emulated: Emulated | None = None
    allow: list[str] | None = None  # the operations of a real run; None for all
    counts_memory: bool = False
    is_watched: bool = False  # whether the rank waits for `Begin`
    capacity: Capacity | None = None  # of the rank's described GPU, if its memory is counted

    @property
    def local_rank(self) -> int:
        """The rank's number on its node."""
        return self.rank % self.local_world_size

    @property
    def local_world_size(self) -> int:
        """The number of ranks on each node."""
        return min(self.emulated.local_world_size, self.world_size) if self.emulated else self.world_size


class RunScript(Message, frozen=True):
    """Run the script of the command line; the file of the call log comes along."""


class Begin(Message, frozen=True):
    """Call the function: the rank's memory is now being watched."""


class Locate(Message, frozen=True):
    """Report the current line in a `Position`."""


class Probe(Message, frozen=True):
    """Report in a `Probed` whether the rank waits for torch's own communication."""


class Leave(Message, frozen=True):
    """Exit: all ranks are done."""


# rank to launcher; any of these may be forged or malformed


class Hello(Message, frozen=True):
    """The first message of a rank under torchrun."""

    pid: Annotated[int, Meta(gt=1)]  # the launcher kills the rank's process group by this ID
    rank: Annotated[int, Meta(ge=0)]
    local_rank: int
    world_size: int
    restarts: int

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {self.rank}; it must be below the world size, {self.world_size}")


class Joined(Message, frozen=True):
    """The rank has joined its process group."""

    backend: Word


class Position(Message, frozen=True):
    """The current lines of the rank's main thread, and the collectives that torch itself has started there.

    `native` is an unfinished collective that torch itself called; `num_native` have been started.
    """

    lines: Annotated[list[Line], Meta(max_length=MAX_LINES)]
    native: Call | None = None
    num_native: int = 0

    def __post_init__(self) -> None:
        if self.native is not None and self.native.state != WAITING:
            raise ValueError(f"native is a call in the state {self.native.state!r}; it must be {WAITING!r}")


class Probed(Message, frozen=True):
    """The number of the collective that torch itself called and that the rank waits for; 0 while the rank works."""

    native: Annotated[int, Meta(ge=0)]


class Events(Message, frozen=True):
    """The rank's events so far."""

    events: Annotated[Sequence[SentEvent], Meta(max_length=MAX_EVENTS)]


class Held(Message, frozen=True):
    """The memory that the rank's tensors held."""

    use: MemoryUse

    def __post_init__(self) -> None:
        self.use.refuse_unless_counted()


class Done(Message, frozen=True):
    """The function returned; the body is its value, encoded with `codec.encode`."""

    spans: Sequence[Span]
    duration_s: Finite
    num_unseen: Count = 0  # collectives that torch itself started and no event describes


class Failed(Message, frozen=True):
    """The rank failed; the launcher fills in which rank."""

    failure: Failure
    spans: Sequence[Span] = ()

    def __post_init__(self) -> None:
        _own(self)


class ThreadFailed(Message, frozen=True):
    """A thread of the rank ended with an exception and the rank goes on; the launcher fills in which rank."""

    thread: Word
    failure: Failure

    def __post_init__(self) -> None:
        _own(self)


def _own(message: Failed | ThreadFailed) -> None:
    """Let a failure be nobody's yet, and reported: a rank decides neither whose it is nor how it was noticed."""
    force_setattr(message, "failure", replace(message.failure, rank=0, cause=FailureCause.REPORTED))


FromRank = Joined | Position | Probed | Events | Held | ThreadFailed | Done | Failed


def read_from_rank(header: bytes) -> FromRank:
    """Read a message of a rank, after its `Hello` if it sends one.

    Raises:
        ValueError: it is a different message, or malformed.
    """
    return read(header, Joined, Position, Probed, Events, Held, ThreadFailed, Done, Failed)
