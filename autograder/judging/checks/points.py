"""What a lab's hidden checks are written with: `@points` on functions that take a `student` and an `rng`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worldsize.check import CheckFailed


@dataclass(frozen=True)
class Check:
    """What a hidden check is worth, in points of one grade cell, and which checks must hold before it is tried."""

    points: float
    cell: str
    needs: tuple[str, ...] = ()


class PartlyHeld(CheckFailed):
    """A check that holds in part: it earns this share of its points, above 0 and below 1; it is reported like another.

    Checks that need it are tried.
    """

    def __init__(self, share: float, expected: str, actual: str, hint: str = "") -> None:
        if not 0 < share < 1:
            raise ValueError(f"a part is a share between 0 and 1, not {share}")
        super().__init__(expected, actual, hint)
        self.share = share


def points(num_points: float, *, cell: str, needs: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that makes a function a hidden check; its docstring is what the student reads in the feedback."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        if not function.__doc__:
            raise ValueError(f"{function.__name__} needs a docstring: it is the sentence that the student reads")
        function.check = Check(num_points, cell, tuple(needs))  # type: ignore[attr-defined]
        return function

    return mark
