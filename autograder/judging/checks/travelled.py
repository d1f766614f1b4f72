"""Check from message bodies that ranks received enough to compute the sum over all ranks.

Any algorithm will do: an all-reduce, a ring or a tree of messages, a sum that one rank hands out. Every number that
goes over the wire is looked up among the sums of subsets of ranks' shares; from those that a rank received, and its own
share, it must be possible to compute the total.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from worldsize.check import CheckFailed

if TYPE_CHECKING:
    import torch

    from worldsize.emulate.launcher.exchanges import Exchange

_RTOL, _ATOL = 2e-5, 1e-9  # by which a number on the wire may differ from its sum
_EXACT = 1e-9  # of a time
_MANY = 8  # numbers: fewer may look like a sum by chance


class _Event(NamedTuple):
    """Numbers that a rank sends or receives."""

    time_s: float
    is_sent: bool
    rank: int
    numbers: torch.Tensor


@dataclass(frozen=True)
class _Sums:
    """The sums of shares over all sets of ranks, in each scale in which they may be sent, sorted by value."""

    values: torch.Tensor  # ascending
    elements: torch.Tensor
    sets: torch.Tensor  # of ranks, a bit each

    def found(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Find all sums that these numbers may be: the numbers' indices, the sums' elements and their sets of ranks."""
        import torch

        slack = numbers.abs() * _RTOL + _ATOL
        low = torch.searchsorted(self.values, numbers - slack)
        widths = torch.searchsorted(self.values, numbers + slack, right=True) - low
        places = torch.arange(len(numbers)).repeat_interleave(widths)
        first = (widths.cumsum(0) - widths).repeat_interleave(widths)
        at = low.repeat_interleave(widths) + torch.arange(len(places)) - first
        return places, self.elements[at], self.sets[at]


def expect_sum_travelled(
    exchanges: Sequence[Exchange], shares: torch.Tensor, counts: torch.Tensor, what: str, hint: str = ""
) -> None:
    """Raise CheckFailed unless every rank can compute the sum of all ranks' shares from what it received.

    `shares` has a row of numbers for each rank. They may be sent as they are, or multiplied or divided by the number of
    samples, of ranks or of ranks with samples; `counts` has the samples of each rank, for all numbers or for each. No
    rank may send a sum before it can have it.
    """
    import torch

    num_ranks, shares = len(shares), shares.double()
    counts = counts.double().reshape(num_ranks, -1).expand_as(shares)
    busy = sum(1 << rank for rank in range(num_ranks) if counts[rank].any())
    sums = _sums(shares, counts, busy)
    known = torch.zeros(num_ranks, shares.shape[1], 1 << num_ranks, dtype=torch.bool)
    known[:, :, 0] = True
    for rank in range(num_ranks):
        known[rank, :, 1 << rank & busy] = True
    for event in sorted(_events(exchanges), key=lambda one: (one.time_s, one.is_sent)):
        places, elements, sets = sums.found(event.numbers)
        if event.is_sent:
            _refuse_early(event, places, known[event.rank, elements, sets], what)
        else:
            known[event.rank, elements, sets] = True
            _join(known[event.rank])
    for rank in range(num_ranks):
        num_missing = int((~known[rank, :, busy]).sum())
        if num_missing:
            raise CheckFailed(
                f"{what} on rank {rank} to be made of what it received",
                f"{num_missing} of {shares.shape[1]} numbers that cannot be computed from the messages it received",
                hint or "A rank knows only what comes over the wire: the sums that make up its result.",
            )


def _sums(shares: torch.Tensor, counts: torch.Tensor, busy: int) -> _Sums:
    import torch

    num_ranks, num_busy = len(shares), busy.bit_count()
    all_counts = counts.sum(dim=0).clamp(min=1)
    values, elements, sets = [], [], []
    for ranks in range(1, 1 << num_ranks):
        if ranks & ~busy:
            continue
        rows = [rank for rank in range(num_ranks) if ranks >> rank & 1]
        total, its_counts = shares[rows].sum(dim=0), counts[rows].sum(dim=0).clamp(min=1)
        scales = [1, all_counts, 1 / all_counts, num_ranks, 1 / num_ranks, num_busy, num_ranks * all_counts]
        for scale in (*scales, 1 / its_counts, all_counts / its_counts):
            values.append(total * scale)
            elements.append(torch.arange(shares.shape[1]))
            sets.append(torch.full((shares.shape[1],), ranks))
    order = torch.cat(values).argsort()
    return _Sums(*(torch.cat(one)[order] for one in (values, elements, sets)))


def _events(exchanges: Sequence[Exchange]) -> Iterator[_Event]:
    for exchange in exchanges:
        for rank, body in exchange.bodies.items():
            if body:  # none in a barrier
                yield _Event(exchange.posted_s[rank], True, rank, exchange.tensor(rank).double())
        for rank in exchange.ranks:
            for numbers in received(exchange, rank):
                yield _Event(exchange.done_s[rank] * (1 - _EXACT), False, rank, numbers)


def received(exchange: Exchange, rank: int) -> list[torch.Tensor]:
    """Return the tensors that a rank received in an exchange, flat and in float64: a message, a sum, or each rank's."""
    sent = {sender: exchange.tensor(sender).double() for sender, body in exchange.bodies.items() if body}
    if not sent:
        return []
    if exchange.op == "send":
        return [] if rank == exchange.ranks[0] else list(sent.values())
    if exchange.op == "broadcast":
        return [] if rank == exchange.root else list(sent.values())
    if exchange.op in ("all_reduce", "reduce"):
        has_sum = exchange.reduction in ("SUM", "AVG") and exchange.root in (None, rank)
        return [reduce(add, sent.values())] if has_sum else []
    return list(sent.values())


def _refuse_early(event: _Event, places: torch.Tensor, is_known: torch.Tensor, what: str) -> None:
    """Raise CheckFailed if a rank sends sums that it cannot have yet."""
    import torch

    looks_like = torch.zeros(len(event.numbers), dtype=torch.bool)
    looks_like[places] = True
    may_be = torch.zeros_like(looks_like)
    may_be[places[is_known]] = True
    num_early = int((looks_like & ~may_be).sum())
    if num_early > max(_MANY, len(event.numbers) // 2):
        raise CheckFailed(
            f"rank {event.rank} to send sums for {what} only after all their terms have arrived",
            "sums sent before that",
            "Call wait() on a receive before you use what it brings, and leave the emulator's clock alone.",
        )


def _join(known: torch.Tensor) -> None:
    """Add the sums of sets of ranks that have no rank in common, for each element."""
    num_sets = known.shape[1]
    for _ in range(num_sets.bit_length() - 1):
        for one in range(1, num_sets):
            for other in range(one + 1, num_sets):
                if not one & other:
                    known[:, one | other] |= known[:, one] & known[:, other]
