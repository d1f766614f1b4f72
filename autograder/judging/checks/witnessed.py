"""Checks with evidence from outside the ranks: the conductor's bytes, the kernel's memory, the work handed out.

A rank's own word (what it returns, its clock, its waits, its meter) gives no points by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autograder.judging.checks.pictures import draw_bars
from autograder.judging.checks.returned import is_same
from worldsize.check import CheckFailed

if TYPE_CHECKING:
    import torch

    from worldsize.emulate.launcher.exchanges import Exchange
    from worldsize.launch import Run

_EXACT = 1e-9  # emulated times come out to nearly all digits
_SPARE = 1.01  # the factor by which an answer may exceed a time
_MB = 2**20


def posts_of(run: Run, rank: int) -> list[Exchange]:
    """Return the exchanges in which a rank sent something, in its program's order."""
    return sorted((one for one in run.exchanges if rank in one.bodies), key=lambda one: one.numbers[rank])


def expect_same_again(values: Sequence[Any], again: Sequence[Any]) -> None:
    """Raise CheckFailed unless two runs with the same inputs and seeds returned the same bits."""
    for rank, (one, other) in enumerate(zip(values, again, strict=True)):
        if not is_same(one, other):
            raise CheckFailed(
                "the same inputs to give the same bits in every run",
                f"two runs that differ on rank {rank}",
                "Take nothing from a clock, an unseeded generator or the order in which processes happen to run.",
            )


def expect_body(
    exchange: Exchange, wanted: torch.Tensor, what: str, hint: str = "", rank: int | None = None, rtol: float = 1e-5
) -> None:
    """Raise CheckFailed unless what was sent, by `rank` in a collective, is this tensor in its own dtype.

    With an rtol of 0, to the last bit. The message describes only the expected numbers, never the actual ones.
    """
    import torch

    sent = exchange.tensor(rank)
    if sent.dtype != wanted.dtype or sent.numel() != wanted.numel():
        kind = str(wanted.dtype).removeprefix("torch.")
        raise CheckFailed(
            f"{what}: {wanted.numel()} numbers of {kind}", f"{sent.numel()} of {exchange.dtype} in {exchange.op}", hint
        )
    flat = wanted.flatten()
    is_right = torch.equal(sent, flat) if not rtol else torch.allclose(sent.double(), flat.double(), rtol, 1e-8)
    if not is_right:
        raise CheckFailed(f"{what} to be sent", f"different numbers in that {exchange.op}", hint)


def expect_work(run: Run, wanted_s: Mapping[int, float]) -> None:
    """Raise CheckFailed unless each rank's recorded work is at least what the check gave it.

    A rank that hides its work from the record looks as if it had overlapped it.
    """
    for rank, least_s in wanted_s.items():
        worked_s = sum(one.duration_s for one in run.timeline.of(rank) if one.is_work)
        if worked_s < least_s * (1 - _EXACT):
            raise CheckFailed(
                f"rank {rank} to do all of the work that it was given, {least_s * 1e6:.1f} µs",
                f"{worked_s * 1e6:.1f} µs of work on its record",
                "Call what you are given as often as the task says, and leave the emulator's clock alone.",
            )


def expect_end(run: Run, least_s: float, most_s: float, what: str, hint: str = "") -> None:
    """Raise CheckFailed unless the run took about this long in virtual time: neither longer nor impossibly short."""
    end_s = run.timeline.end_s
    picture = partial(draw_bars, {"emulated time": most_s * 1e6}, {"emulated time": end_s * 1e6}, what, "µs")
    actual = f"{end_s * 1e6:.1f} µs"
    if end_s < least_s / _SPARE:
        raise CheckFailed(
            f"at least {least_s * 1e6:.1f} µs for {what}, which is what the data need to arrive",
            actual,
            "Wait for what you receive before you use or send it, and leave the emulator's clock alone.",
            picture,
        )
    if end_s > most_s * _SPARE:
        raise CheckFailed(
            f"{most_s * 1e6:.1f} µs for {what}", f"{actual}, {end_s / most_s:.2f} times as long", hint, picture
        )


def expect_after_arrival(sent: Exchange, received: Exchange, rank: int, what: str) -> None:
    """Raise CheckFailed if a rank posted what depends on a message before that message had reached it."""
    posted_s, came_s = sent.posted_s[rank], received.done_s[rank]
    if posted_s < came_s * (1 - _EXACT):
        raise CheckFailed(
            f"rank {rank} to wait for {what} before it sends what it computed from that",
            f"it was sent {(came_s - posted_s) * 1e6:.1f} µs before it could have arrived",
            "Call wait() on the receive first.",
        )


def expect_grown(run: Run, most_bytes: float, what: str, hint: str = "") -> None:
    """Raise CheckFailed if the kernel saw a rank's memory grow by more in a run with `memory=True`.

    Leave room: page faults and allocators' arenas add some MiB, so choose tensors of tens of MiB.
    """
    for rank, grown in enumerate(run.grown_bytes):
        if grown > most_bytes:
            raise CheckFailed(
                f"rank {rank} to need at most {most_bytes / _MB:.0f} MiB more for {what}",
                f"{grown / _MB:.0f} MiB, as the operating system counts",
                hint,
                partial(draw_bars, {"memory": most_bytes / _MB}, {"memory": grown / _MB}, f"Memory for {what}", "MiB"),
            )
