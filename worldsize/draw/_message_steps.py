"""The messages and collectives of a run in steps, as they were recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worldsize import units
from worldsize.event import Event, is_message, operations

_MOST_LISTED = 8  # transfers that a sentence lists one by one
_ROUNDING = 1e-9  # of the run


@dataclass(frozen=True)
class Transfer:
    """A message from `ranks[0]` to `ranks[1]`, or a collective of `ranks`; it ends when the last of them is done."""

    name: str
    ranks: tuple[int, ...]
    size_bytes: int
    start_s: float
    end_s: float

    @property
    def is_message(self) -> bool:
        """True for a message from one rank to another."""
        return self.name == "send"

    def describe(self) -> str:
        """Describe the transfer in words."""
        size = units.format_bytes(self.size_bytes)
        if self.is_message:
            return f"rank {self.ranks[0]} sends {size} to rank {self.ranks[1]}"
        return f"ranks {', '.join(map(str, self.ranks))} call {self.name} on {size}"


@dataclass(frozen=True)
class Round:
    """The transfers of one step."""

    transfers: tuple[Transfer, ...]

    @property
    def start_s(self) -> float:
        """When the first of them began, in seconds."""
        return min(transfer.start_s for transfer in self.transfers)

    @property
    def end_s(self) -> float:
        """When the last of them was over, in seconds."""
        return max(transfer.end_s for transfer in self.transfers)

    def describe(self) -> str:
        """Describe who sends what to whom in this step."""
        listed = [transfer.describe() for transfer in self.transfers[:_MOST_LISTED]]
        more = len(self.transfers) - len(listed)
        return "; ".join(listed) + (f"; and {more} more" if more else "")

    def names(self) -> list[str]:
        """The collectives among them."""
        return sorted({transfer.name for transfer in self.transfers if not transfer.is_message})

    def amount(self) -> str:
        """The number of transfers and their size: `4 × 16.4 kB`."""
        sizes = sorted({transfer.size_bytes for transfer in self.transfers})
        size = " to ".join(units.format_bytes(one) for one in dict.fromkeys((sizes[0], sizes[-1])))
        return f"{len(self.transfers)} × {size}" if len(self.transfers) > 1 else size


def rounds(events: Iterable[Event]) -> list[Round]:
    """Find the steps of a run, in order, from its recorded events alone.

    The step of a transfer is one more than the latest step that any of its ranks had finished when the transfer began
    there: when it was sent, or its receive posted if that was earlier (a collective: when the rank called). So a
    rank's concurrent transfers share a step, and a straggler delays a step but does not split it.
    """
    operated = [(_transfer(parts), {event.rank: event for event in parts}) for parts in operations(events)]
    operated.sort(key=lambda pair: (pair[0].start_s, pair[0].end_s, pair[0].ranks))
    slack_s = _ROUNDING * max((transfer.end_s for transfer, _ in operated), default=0.0)
    behind: dict[int, _FinishedSteps] = defaultdict(_FinishedSteps)
    steps: dict[int, list[Transfer]] = defaultdict(list)
    for transfer, parts in operated:
        begun_s = {rank: min(event.start_s, transfer.start_s) + slack_s for rank, event in parts.items()}
        step = 1 + max(behind[rank].at(time_s) for rank, time_s in begun_s.items())
        steps[step].append(transfer)
        for rank, event in parts.items():
            behind[rank].add(event.end_s, step)
    return [Round(tuple(sorted(steps[step], key=lambda transfer: transfer.ranks))) for step in sorted(steps)]


class _FinishedSteps:
    """The latest step that a rank has finished, by time."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._steps: list[int] = []  # in increasing order

    def at(self, time_s: float) -> int:
        """Return the latest step that had ended by then; 0 if none had."""
        index = bisect_right(self._ends_s, time_s)
        return self._steps[index - 1] if index else 0

    def add(self, end_s: float, step: int) -> None:
        """Record that the rank has finished this step from `end_s` on."""
        if self.at(end_s) >= step:
            return
        index = bisect_right(self._ends_s, end_s)
        until = bisect_right(self._steps, step, lo=index)
        self._ends_s[index:until], self._steps[index:until] = [end_s], [step]


def _transfer(parts: Sequence[Event]) -> Transfer:
    """Combine these events of one operation into a transfer."""
    first = parts[0]
    end_s = max(event.end_s for event in parts)
    if not is_message(first):
        start_s = max(event.start_s for event in parts)
        return Transfer(first.name, tuple(sorted(first.peers)), first.size_bytes, start_s, end_s)
    is_sent = first.name == "send"  # otherwise the send was not recorded
    ranks = (first.rank, *first.peers) if is_sent else (*first.peers, first.rank)
    return Transfer("send", ranks, first.size_bytes, first.start_s, end_s)
