"""Recording of a rank's steps: its own work, posts and waits, on lanes with marks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import cast

from worldsize.emulate.protocol.record import COMPUTE, JOIN, MAIN, MARK, Step
from worldsize.emulate.worker import torch_internals
from worldsize.emulate.worker.compute import Meter
from worldsize.emulate.worker.works import Backward, Connection

_UNNAMED: tuple[str, str] = ("", COMPUTE)  # work outside any span


class _ThreadWork(threading.local):
    """Where the work of a thread goes: its lane, its meter, and the name and kind of the work now under way."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.lane = self.own_lane = MAIN
        self.labels = [_UNNAMED]


class StepRecorder:
    """The steps of a rank since they were last taken, and where each of its threads puts its own."""

    def __init__(self, meter: Meter, missing: Mapping[str, str] = MappingProxyType({})) -> None:
        self.missing = missing  # the transfers that the cluster cannot carry, and why
        self._recording = threading.RLock()  # guards `_steps` and its marks
        self._steps: list[Step] = []
        self._here = _ThreadWork(meter)
        self._lanes: dict[str, None] = {}  # those with work or marks so far, in order
        self._num_marks = self.host_mark = 0  # the latter is where the program itself last waited, once it has streams
        self.is_in_child = False  # true in a process that the rank has forked
        self.last_backward: Backward | None = None  # until its end

    @property
    def lane(self) -> str:
        """The lane to which this thread's work goes."""
        return self._here.lane

    @property
    def meter(self) -> Meter:
        """The meter of this thread's work."""
        return self._here.meter

    def step(self, kind: str, number: int) -> None:
        """Record a step of this rank, after its own work so far; both are sent with the next message."""
        self._note_work()
        self._record(Step(kind, number, lane=self._here.lane))

    def _note_work(self) -> None:
        """Record the work that the meter has counted since the last call."""
        self.spend(self.meter.take_s())

    def note_refusal(self) -> None:
        """Report that a call of this rank was refused; does nothing on paper, where the error suffices."""

    def spend(self, duration_s: float) -> None:
        """Record work of this rank for a duration in virtual time."""
        if duration_s:
            self._record(Step(COMPUTE, 0, duration_s, *self._here.labels[-1], self._here.lane))

    def transfer(self, transfer: str, size_bytes: int, name: str, kind: str) -> None:
        """Let the current lane wait for a transfer, with this name and kind unless a span sets others.

        Raises:
            ValueError: the cluster lacks the hardware for it.
        """
        if transfer in self.missing:
            raise ValueError(self.missing[transfer])
        self._note_work()
        labels = (name, kind) if self._here.labels[-1] == _UNNAMED else self._here.labels[-1]
        self._record(Step(transfer, size_bytes, 0.0, *labels, self._here.lane))

    @contextmanager
    def unmetered(self) -> Iterator[None]:
        """Ignore what the meter counts inside the block, whose time is recorded otherwise."""
        self._note_work()
        try:
            yield
        finally:
            self.meter.take_s()

    def _record(self, step: Step) -> None:
        with self._recording:
            self._steps.append(step)

    @contextmanager
    def span(self, name: str, kind: str) -> Iterator[None]:
        """Label the work inside the block with this name and kind."""
        self._note_work()
        self._here.labels.append((name, kind))
        try:
            yield
        finally:
            self._note_work()
            self._here.labels.pop()

    @contextmanager
    def on_lane(self, lane: str, after: int = 0) -> Iterator[None]:
        """Record the work inside the block on this lane, no earlier than the mark `after`."""
        self._note_work()
        before, self._here.lane = self._here.lane, lane
        self._lanes[lane] = None
        try:
            if after:
                self.join(after)
            yield
        finally:
            self._note_work()
            self._here.lane = before

    def switch_to(self, lane: str) -> None:
        """Record this thread's work from now on on this lane."""
        self._note_work()
        self._here.lane = lane
        self._lanes[lane] = None

    @contextmanager
    def in_thread(self, lane: str, after: int) -> Iterator[None]:
        """Record the work of this new thread on a lane, no earlier than the mark `after`."""
        self._here.own_lane = lane
        self._here.meter = self._here.meter.for_thread()
        self._here.meter.start()
        with self.on_lane(lane, after):
            yield

    def ask_time(self) -> Callable[[], float]:
        """Ask for the time of the current lane here, in seconds; what is returned waits for the answer."""
        raise NotImplementedError

    def mark(self) -> int:
        """Set a mark here on the current lane, and return its number."""
        with self._recording:
            self._num_marks += 1
            number = self._num_marks
            self._lanes[self._here.lane] = None
            self.step(MARK, number)
        return number

    def join(self, mark: int) -> None:
        """Let the current lane wait for a mark."""
        self.step(JOIN, mark)

    def join_all(self) -> None:
        """Let the current lane wait for every other lane's steps so far."""
        for lane in [lane for lane in self._lanes if lane != self._here.lane]:
            with self.on_lane(lane):
                mark = self.mark()
            self.join(mark)

    def note_host(self) -> None:
        """Mark that the program itself has waited here: work that it issues on streams starts no earlier."""
        if self.host_mark:
            self.host_mark = self.mark()

    def join_program(self) -> None:
        """Let this thread wait for the lane on which it issues work."""
        if self._here.lane != self._here.own_lane:
            mark = self.mark()
            with self.on_lane(self._here.own_lane):
                self.join(mark)
                self.note_host()

    def backward(self) -> Backward | None:
        """Return the backward pass that runs in this thread, if any."""
        number = torch_internals.backward_number()
        if number is None:
            return None
        if self.last_backward is None or self.last_backward.number != number:
            self.last_backward = Backward(cast(Connection, self), number)
        return self.last_backward

    def _take_steps(self) -> list[Step]:
        with self._recording:
            steps, self._steps = self._steps, []
        return steps
