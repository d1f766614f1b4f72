"""A rank on paper: it takes the steps of an emulated rank, but records them rather than sending them to a conductor."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch

from worldsize.emulate.protocol.record import COMPUTE, POST, Step
from worldsize.emulate.worker.steps import StepRecorder
from worldsize.emulate.worker.waits import Waits
from worldsize.emulate.worker.works import Fulfilments, Future, Observer, PendingCall, Work
from worldsize.memory.ledger import line_of_program
from worldsize.memory.program_lines import quote_line
from worldsize.paper.operator_log import OperatorLog, UnreadNumber
from worldsize.paper.record import BEGIN, END, OTHER, Boundary, RecordedGroup, RecordedPost
from worldsize.paper.side import Side

_TIMES_N = ("all_gather", "gather")  # operations whose size is that of all ranks' tensors


class PaperWork(Work):
    """One call on paper, which is done at once; waits for it exist only in the record."""

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors; inside backward it counts as waited for at backward's end, as by DDP."""
        if backward := self.client.backward():
            backward.works.append(self)
        future = Future(self)
        future.set_result(self._result)
        return future


class Recorder(StepRecorder):
    """The record of a rank as it grows."""

    def __init__(
        self, rank: int, world_size: int, observer: Observer, side: Side, missing: Mapping[str, str] | None = None
    ) -> None:
        self.log = OperatorLog(self._note_work)
        super().__init__(self.log, missing or {})
        self.folder = os.path.realpath(os.getcwd())  # the program's folder, which it may leave
        self.rank, self.world_size, self.observer, self.side = rank, world_size, observer, side
        self.waits, self.fulfilments = Waits(lambda: None), Fulfilments()
        self.batches: list[Counter[int]] = []
        self.posts: list[RecordedPost] = []
        self.groups: dict[RecordedGroup, int] = {}
        self.boundaries: list[Boundary] = []
        self.asked_at = self.asked_kind_at = ""  # the first line that asked how many ranks a node has, or for its GPU
        self._num_collectives: Counter[int] = Counter()
        self._is_begun = False
        self._optimizers: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # optimizer -> its number
        self._numbers = itertools.count()

    @property
    def steps(self) -> list[Step]:
        """The steps so far."""
        return self._steps

    def _note_work(self) -> None:
        if batch := self.log.take():
            self.batches.append(batch)
            name, kind = self._here.labels[-1]
            is_named = (name, kind) != ("", COMPUTE)
            self._record(Step(COMPUTE, len(self.batches), 0.0, name, kind if is_named else self.log.phase, self.lane))

    def post(
        self,
        op: str,
        name: str,
        ranks: tuple[int, ...],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        result: Any,
        *,
        peer: int | None = None,
        tag: int = 0,
        **_unrecorded: Any,
    ) -> PaperWork:
        """Record a call and return its work."""
        self._note_work()
        group = self.groups.setdefault(RecordedGroup(name, ranks), len(self.groups))
        number = len(self.posts) + 1
        self._num_collectives[group] += op not in ("send", "recv")
        size_bytes = _size_bytes(op, inputs or outputs, len(ranks))
        self.posts.append(RecordedPost(number, op, group, size_bytes, peer, self._num_collectives[group], tag))
        self._record(Step(POST, number, lane=self.lane))
        self.side.carry(op, [*inputs, *outputs], peer, ranks)
        return PaperWork(self, number, PendingCall(op, ranks, peer), lambda _: None, result)

    def note_count(self, line: str = "") -> None:
        """Record the first line of the program that asks how many ranks a node has."""
        self.asked_at = self.asked_at or line or quote_line(*line_of_program())

    def note_kind(self) -> None:
        """Record the first line of the program that asks what GPU it has."""
        self.asked_kind_at = self.asked_kind_at or quote_line(*line_of_program())

    # the steps of training

    def begin(self) -> None:
        """Record the beginning of a forward pass; the first after an update begins a step, unless it recomputes."""
        if not self._is_begun and self.backward() is None:
            self._is_begun = True
            self._bound(BEGIN)

    def begin_update(self) -> None:
        """Record the beginning of an update."""
        self.log.is_updating = True

    def end_update(self, optimizer: object) -> None:
        """Record the end of an update by this optimizer."""
        self.log.is_updating = self._is_begun = False
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = next(self._numbers)
        self._bound(END, self._optimizers[optimizer])

    def _bound(self, kind: str, optimizer: int = 0) -> None:
        mark = self.mark()
        self.boundaries.append(Boundary(kind, mark, len(self.batches), optimizer))

    # nothing is awaited on paper

    def await_answer(self, work: Work) -> None:
        """Return at once."""

    def await_arrival(self, work: Work) -> None:
        """Return at once."""

    def await_within(self, work: Work, timeout_s: float) -> None:
        """Return at once."""

    def is_done(self, work: Work, asked_s: dict[str, float], question: str) -> bool:
        """True: on paper every call is done at once."""
        return True

    def elapsed_s(self) -> float:
        """Return NaN: the time is known only once the record is priced."""
        self.note_host()
        return float("nan")

    def ask_time(self) -> Callable[[], float]:
        """Return a function that returns what is printed as nan and decides nothing: the time is known once priced."""
        return UnreadNumber

    def flush(self) -> None:
        """Do nothing: there is no conductor."""


class Unobserved:
    """An observer that does nothing."""

    def posting(self, op: str, tensors: Sequence[Any], group: Any, reduction: str, peer: int | None) -> None:
        """Note nothing."""

    def posted(self, mark: Any, work: Work) -> None:
        """Note nothing."""

    def waiting(self, work: Work) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def changed(self, work: Work, state: str) -> None:
        """Note nothing."""


def _size_bytes(op: str, tensors: Sequence[torch.Tensor], num_ranks: int) -> int:
    size_bytes = sum(one.numel() * one.element_size() for one in tensors)
    is_a_part = op == "scatter" and len(tensors) == 1  # on a rank that is not the root
    return size_bytes * num_ranks if op in _TIMES_N or is_a_part else size_bytes


assert OTHER == COMPUTE
