"""Every message between a launcher, its forkserver and its ranks, each with the parser that its receiver uses.

On the wire a message is a header of JSON with the class's name as its kind; open files and a body may come along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from worldsize.emulate.protocol.messages import Emulated
from worldsize.fields import Fields, fields_of, finite, integer, items, number, text, texts
from worldsize.launch.protocol.call_log import WAITING, Call
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.protocol.source import MAX_LINES, Line
from worldsize.memory.capacity import Capacity
from worldsize.memory.use import MemoryUse
from worldsize.message import Message, read

_MAX_WORD, _MAX_PATH = 80, 1 << 15
MAX_EVENTS = 2_000  # that travel in one message
Span = tuple[str, str, float, float]  # name, kind, start and end in seconds of the monotonic clock


# launcher to forkserver


@dataclass(frozen=True)
class Fork(Message):
    """Fork a rank; two open files come along: the rank's socket and the pipe for its output."""

    job: int

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls(integer(fields, "job"))


@dataclass(frozen=True)
class Kill(Message):
    """Kill the ranks of these jobs."""

    jobs: list[int]

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls([integer({"job": job}, "job") for job in items(fields, "jobs")])


@dataclass(frozen=True)
class Sweep(Message):
    """Remove all processes and files that ranks have left in a jail, but what has the name `kept` below /tmp."""

    kept: str = ""

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls(text(fields, "kept", _MAX_WORD))


# forkserver to launcher


@dataclass(frozen=True)
class Warm(Message):
    """The forkserver has imported what ranks need."""

    num_gpus: int

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls(integer(fields, "num_gpus"))


@dataclass(frozen=True)
class Forked(Message):
    """A job's rank has been forked."""

    job: int
    pid: int

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls(job=integer(fields, "job"), pid=integer(fields, "pid"))


@dataclass(frozen=True)
class Exited(Message):
    """A job's rank has ended, with this wait status."""

    job: int
    status: int

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls(job=integer(fields, "job"), status=integer(fields, "status"))


@dataclass(frozen=True)
class Swept(Message):
    """What ranks had left is gone."""


# launcher to rank


@dataclass(frozen=True)
class Place(Message):
    """The folder and the search path of the launcher, which a rank on the same machine shares."""

    cwd: str
    path: list[str]

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The place of these fields."""
        return cls(cwd=text(fields, "cwd", _MAX_PATH), path=[str(one) for one in items(fields, "path")])


@dataclass(frozen=True)
class Job(Message):
    """Run the function in the body; the files of the call log and, if emulated, of the conductor come along."""

    rank: int
    world_size: int
    backend: str
    timeout_s: float
    num_threads: int
    env: Mapping[str, str]
    sources: Mapping[str, str]  # the text of notebook cells by file name
    store: str = ""  # the file through which forked ranks meet
    network: str = ""  # the network namespace from which the rank joins
    place: Place | None = None
    emulated: Emulated | None = None
    allow: list[str] | None = None  # the operations of a real run; None for all
    counts_memory: bool = False
    is_watched: bool = False  # then the rank waits for `Begin`
    capacity: Capacity | None = None  # of the rank's described GPU, where its memory is counted

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        nested = {"place": self.place and self.place.to_fields(), "capacity": self.capacity and vars(self.capacity)}
        return vars(self) | nested | {"emulated": self.emulated and self.emulated.to_fields()}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields."""
        return cls(
            rank=integer(fields, "rank"),
            world_size=integer(fields, "world_size"),
            backend=text(fields, "backend", _MAX_WORD),
            timeout_s=number(fields, "timeout_s"),
            num_threads=integer(fields, "num_threads"),
            env=texts(fields, "env"),
            sources=texts(fields, "sources"),
            store=text(fields, "store", _MAX_PATH),
            network=text(fields, "network", _MAX_PATH),
            place=None if fields.get("place") is None else Place.parse(fields_of(fields["place"])),
            emulated=None if fields.get("emulated") is None else Emulated.parse(fields_of(fields["emulated"])),
            allow=None if fields.get("allow") is None else [str(op) for op in items(fields, "allow")],
            counts_memory=fields.get("counts_memory") is True,
            is_watched=fields.get("is_watched") is True,
            capacity=None if fields.get("capacity") is None else Capacity.parse(fields_of(fields["capacity"])),
        )

    @property
    def local_rank(self) -> int:
        """The rank's place on its node."""
        return self.rank % (self.emulated.local_world_size if self.emulated else self.world_size)


@dataclass(frozen=True)
class Script(Message):
    """Run the script of the command line; the file of the call log comes along."""


@dataclass(frozen=True)
class Begin(Message):
    """The rank's memory is watched from now on: call the function."""


@dataclass(frozen=True)
class Locate(Message):
    """Report the line that runs now: answer with a `Position`."""


@dataclass(frozen=True)
class Leave(Message):
    """All ranks are done: end the process."""


# rank to launcher; whatever comes from there may be forged or malformed


@dataclass(frozen=True)
class Hello(Message):
    """The first message of a rank under torchrun."""

    pid: int
    rank: int
    local_rank: int
    world_size: int
    restarts: int

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        names = ("pid", "rank", "local_rank", "world_size", "restarts")
        hello = cls(**{name: integer(fields, name) for name in names})
        if not 0 <= hello.rank < hello.world_size:
            raise ValueError(f"there is no rank {hello.rank} of {hello.world_size}")
        if hello.pid <= 1:  # the launcher ends a rank's group by it
            raise ValueError(f"a rank is not process {hello.pid}")
        return hello


@dataclass(frozen=True)
class Joined(Message):
    """The rank has joined its process group."""

    backend: str

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(text(fields, "backend", _MAX_WORD))


@dataclass(frozen=True)
class Position(Message):
    """The lines at which the rank's main thread is, and what torch itself has started there.

    `native` is a collective that torch has called itself and not finished; `num_native` have been started.
    """

    lines: list[Line]
    native: Call | None = None
    num_native: int = 0

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        native = self.native and self.native.to_fields()
        return {"lines": [vars(line) for line in self.lines], "native": native, "num_native": self.num_native}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        lines = [Line.from_fields(line) for line in items(fields, "lines")[-MAX_LINES:]]
        return cls(lines, _native(fields.get("native")), integer(fields, "num_native", 0))


def _native(value: Any) -> Call | None:
    if value is None:
        return None
    try:
        fields = fields_of(value)
        return Call.from_fields(dict(fields), WAITING, integer(fields, "number"))
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not a call: {error}") from None


@dataclass(frozen=True)
class Events(Message):
    """What happened on the rank so far, in rows for `read_events`."""

    events: Sequence[Sequence[Any]]

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        events = items(fields, "events")
        if len(events) > MAX_EVENTS:
            raise ValueError(f"a message of {len(events)} events; at most {MAX_EVENTS} travel in one")
        return cls(events)


@dataclass(frozen=True)
class Held(Message):
    """What the rank's tensors held."""

    use: MemoryUse

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return self.use.to_fields()

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(MemoryUse.parse(fields))


@dataclass(frozen=True)
class Done(Message):
    """The function returned; the body is its value, as `codec.encode` wrote it."""

    spans: Sequence[Span]
    duration_s: float

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(_spans(fields), number(fields, "duration_s"))


@dataclass(frozen=True)
class Failed(Message):
    """The rank failed; the launcher itself fills in which rank."""

    failure: Failure
    spans: Sequence[Span] = field(default_factory=tuple)

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return {"failure": self.failure.to_fields(), "spans": self.spans}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(Failure.from_fields(0, fields_of(fields.get("failure"))), _spans(fields))


@dataclass(frozen=True)
class ThreadFailed(Message):
    """A thread of the rank ended with an exception, and the rank goes on; the launcher itself fills in which rank."""

    thread: str
    failure: Failure

    def to_fields(self) -> dict[str, Any]:
        """The message as JSON fields."""
        return {"thread": self.thread, "failure": self.failure.to_fields()}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """The message of these fields.

        Raises:
            ValueError: they are not such a message's.
        """
        return cls(text(fields, "thread", _MAX_WORD), Failure.from_fields(0, fields_of(fields.get("failure"))))


def _spans(fields: Fields) -> list[Span]:
    return [_span(row) for row in items(fields, "spans")]


def _span(row: Any) -> Span:
    if not isinstance(row, list) or len(row) != 4:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError("a span is a name, a kind, a start and an end")
    name, kind, start_s, end_s = row  # pyright: ignore[reportUnknownVariableType]
    return str(name)[:_MAX_WORD], str(kind)[:_MAX_WORD], finite(start_s, "a start"), finite(end_s, "an end")  # pyright: ignore


FromRank = Joined | Position | Events | Held | ThreadFailed | Done | Failed


def read_from_rank(header: Fields) -> FromRank:
    """The message of a rank, after its `Hello` if it sends one.

    Raises:
        ValueError: it is another message, or malformed.
    """
    return read(header, Joined, Position, Events, Held, ThreadFailed, Done, Failed)
