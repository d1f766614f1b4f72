"""Hidden checks: `@points` on functions that take a `student` and an `rng`, and the errors with which they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autograder.judging.report import Outcome
from worldsize.check import CheckFailed


@dataclass(frozen=True)
class Check:
    """A hidden check's points, the grade cell that they belong to, and the checks that must hold before it is tried."""

    points: float
    cell: str
    needs: tuple[str, ...] = ()


class PartlyHeld(CheckFailed):
    """A check that holds in part: it earns this share of its points, above 0 and below 1.

    It is reported like a failure, but checks that need it are tried.
    """

    def __init__(self, share: float, expected: str, actual: str, hint: str = "") -> None:
        if not 0 < share < 1:
            raise ValueError(f"a part must be a share from 0 to 1, not {share}")
        super().__init__(expected, actual, hint)
        self.share = share


class StudentFailed(Exception):
    """A run of the student's code that returned no values; `outcome` says how it ended, the text says why.

    `may_be_external` is True if a different process on the machine may have taken the time or memory that it needed.
    """

    def __init__(self, outcome: Outcome, message: str, may_be_external: bool = False) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.may_be_external = may_be_external or outcome is Outcome.TIME_LIMIT


@contextmanager
def hinted(hint: str | Mapping[Outcome, str], *others: Outcome) -> Iterator[None]:
    """Add a hint to the report on a run in this block that hangs, or that ends in one of `others`.

    A mapping has a hint for each outcome that it names.
    """
    hints = dict.fromkeys((Outcome.HUNG, *others), hint) if isinstance(hint, str) else hint
    try:
        yield
    except StudentFailed as failed:
        if not hints.get(failed.outcome):
            raise
        text = f"{failed}\n{hints[failed.outcome]}"
        raise StudentFailed(failed.outcome, text, failed.may_be_external) from None


def points(num_points: float, *, cell: str, needs: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator that turns a function into a hidden check; students read its docstring in the feedback."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        if not function.__doc__:
            raise ValueError(f"{function.__name__} needs a docstring: it is the sentence that the student reads")
        function.check = Check(num_points, cell, tuple(needs))  # type: ignore[attr-defined]
        return function

    return mark
