"""Streams of an emulated rank: those of `torch.cpu`, which do nothing in torch, and of a GPU, as lanes with own clocks.

As on a GPU, the program runs ahead of the work that it issues: work on a stream starts when the stream has finished
its earlier work and its waits, independently of other streams. It starts no earlier than the last moment at which the
program itself waited, in `synchronize` or `worldsize.emulate.elapsed`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from worldsize.emulate.protocol.record import MAIN
from worldsize.emulate.worker.steps import StepRecorder


class Stream:
    """The emulated rank's replacement for `torch.cpu.Stream` and `torch.cuda.Stream`."""

    _client: StepRecorder
    _numbers = itertools.count(1)

    def __init__(self, *_args: Any, lane: str | None = None, **_options: Any) -> None:
        self.lane = f"stream {next(self._numbers)}" if lane is None else lane
        self._seen_mark = 0  # the program's last wait that this stream has taken into account
        if lane is None:
            self._client.host_mark = self._client.host_mark or self._client.mark()

    def issue(self) -> AbstractContextManager[None]:
        """Return the context in which this rank's work goes to this stream."""
        mark = self._client.host_mark
        is_late = self.lane != MAIN and self._seen_mark != mark
        self._seen_mark = mark
        return self._client.on_lane(self.lane, mark if is_late else 0)

    def wait_stream(self, stream: Stream) -> None:
        """Let work issued here from now on wait for all work issued so far on another stream."""
        stream.record_event().wait(self)

    def wait_event(self, event: EmulatedEvent) -> None:
        """Let what is issued here from now on wait for an event."""
        event.wait(self)

    def record_event(self, event: EmulatedEvent | None = None) -> EmulatedEvent:
        """An event that happens when all that was issued here is done."""
        recorded = EmulatedEvent() if event is None else event
        recorded.record(self)
        return recorded

    def synchronize(self) -> None:
        """Block the program until all work issued here is done."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Return True: for the program, time passes only while it waits."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.lane == self.lane

    def __hash__(self) -> int:
        return hash(self.lane)


class EmulatedEvent:
    """What `torch.cpu.Event` and `torch.cuda.Event` are on an emulated rank: a point of a stream."""

    def __init__(self, enable_timing: bool = False, *_args: Any, **_options: Any) -> None:
        self._mark, self._is_timed = 0, enable_timing
        self._time_s: Callable[[], float] | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Let the event happen when all work issued so far on this stream, or on the current one, is done."""
        stream = stream or current_stream()
        with stream.issue():
            self._mark = stream._client.mark()
            if self._is_timed:
                self._time_s = stream._client.ask_time()

    def elapsed_time(self, end: EmulatedEvent) -> float:
        """Return the milliseconds of virtual time from this event to a later one.

        Raises:
            ValueError: one of them was made without `enable_timing`, or was not recorded.
        """
        if self._time_s is None or end._time_s is None:
            raise ValueError("both events need enable_timing=True, and must have been recorded")
        return 1e3 * (end._time_s() - self._time_s())

    def wait(self, stream: Stream | None = None) -> None:
        """Let work issued from now on, on this stream or the current one, wait for the event."""
        stream = stream or current_stream()
        if self._mark:
            with stream.issue():
                stream._client.join(self._mark)

    def synchronize(self) -> None:
        """Block the program until the event."""
        self.wait(Stream(lane=MAIN))
        Stream._client.note_host()

    def query(self) -> bool:
        """Return True: for the program, time passes only while it waits."""
        return True


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Issue the block's work on this stream; None changes nothing."""
    if stream is None:
        yield
        return
    with stream.issue():
        yield


def set_stream(stream: Stream | None) -> None:
    """Issue this thread's work on this stream from now on; None changes nothing."""
    if stream is not None:
        stream._client.switch_to(stream.lane)


def default_stream(device: Any = None) -> Stream:
    """Return the stream on which this rank issues work unless it chooses another."""
    return Stream(lane=MAIN)


def current_stream(device: Any = None) -> Stream:
    """Return the stream on which this thread issues work."""
    return Stream(lane=Stream._client.lane)


def synchronize(device: Any = None) -> None:
    """Block the program until all streams of this rank are done."""
    Stream._client.join_all()
    Stream._client.note_host()


OF_A_GPU = {  # by their names in `torch.cuda`
    "Stream": Stream,
    "Event": EmulatedEvent,
    "StreamContext": stream,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_stream": set_stream,
    "stream": stream,
    "synchronize": synchronize,
}


def install(client: StepRecorder) -> None:
    """Give `torch.cpu` these streams in this process."""
    Stream._client = client
    torch.cpu.Stream, torch.cpu.Event = Stream, EmulatedEvent
    for function in (stream, current_stream, synchronize):
        setattr(torch.cpu, function.__name__, function)
