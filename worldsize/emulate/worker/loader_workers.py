"""Workers of a `DataLoader` on an emulated rank: a worker's waits are sent with its batch and put on its own lane.

Workers are processes without a clock. A worker begins a batch when the rank has asked for it and its earlier batches
are done; the rank gets the batch no earlier than it is done. So as many batches are in progress as the loader
prefetches. Only transfers and `emulate.spend` take time in a worker, not its computation: the speed of the host's
CPUs is not described.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from worldsize.emulate.protocol.record import Step
from worldsize.emulate.worker.client import Client
from worldsize.emulate.worker.wrapping import around


@dataclass
class _Fetched:
    """A batch with its worker's steps."""

    batch: Any
    steps: Sequence[Step]


def install(client: Client) -> None:
    """Let the batches of workers that are forked from now on take virtual time."""
    os.register_at_fork(
        before=client.hold_locks, after_in_parent=client.free_locks, after_in_child=client.leave_to_parent
    )
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _note_steps(client, fetcher)
    _take_time(client, dataloader._MultiProcessingDataLoaderIter)


def _note_steps(client: Client, fetcher: Any) -> None:
    """Send a worker's steps along with its batch."""

    def fetch_batch(before: Callable[..., Any], self: Any, index: Any) -> Any:
        if not client.is_in_child:
            return before(self, index)
        client.take_work()
        batch = before(self, index)
        steps = client.take_work()
        return _Fetched(batch, steps) if steps else batch

    around(fetcher, "fetch", fetch_batch)


def _take_time(client: Client, loader_iter: Any) -> None:
    """Let a rank that fetches a batch wait until its worker is done with it."""

    def put_index(before: Callable[..., Any], self: Any) -> None:
        sent = self._send_idx
        if sent == 0:  # an epoch begins
            self._asked_marks = [deque[int]() for _ in range(self._num_workers)]
        before(self)
        if self._send_idx > sent:
            worker, *_ = self._task_info[sent]
            self._asked_marks[worker].append(client.mark())

    def process_data(before: Callable[..., Any], self: Any, data: Any, worker: int) -> Any:
        asked = self._asked_marks[worker].popleft()
        if isinstance(data, _Fetched):
            client.replay(data.steps, f"loader worker {worker}", asked)
            data = data.batch
        return before(self, data, worker)

    around(loader_iter, "_try_put_index", put_index)
    around(loader_iter, "_process_data", process_data)
