"""Comparisons of a student's result with the right one; a failure says what to do next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Drawn(Protocol):
    """A picture and its description in words; every figure of `worldsize.draw` is one."""

    alt: str

    def png(self) -> bytes:
        """The bytes of a PNG file."""
        ...


class CheckFailed(Exception):
    """A failed check: what was expected, what came instead, and a hint. The student sees it as one paragraph.

    `picture` draws the same for the feedback page. It is called only where a picture is shown, and must not show
    anything that has to stay hidden; if it raises, there is no picture.
    """

    def __init__(self, expected: str, actual: str, hint: str = "", picture: Callable[[], Drawn] | None = None) -> None:
        self.expected, self.actual, self.hint, self.picture = expected, actual, hint, picture
        parts = [text if text.endswith(".") else f"{text}." for text in (f"Expected: {expected}", f"Got: {actual}")]
        super().__init__(" ".join([*parts, hint[0].upper() + hint[1:]] if hint else parts))

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints instead of a traceback of our own frames."""
        lines = ["Check failed.", f"  expected: {self.expected}", f"  got:      {self.actual}"]
        return lines + ([f"  hint:     {self.hint}"] if self.hint else [])


def expect_close(
    actual: Any,
    expected: torch.Tensor | float,
    what: str,
    hint: str = "",
    rtol: float = 1e-4,
    atol: float = 1e-5,
    picture: Callable[[], Drawn] | None = None,
) -> None:
    """Raise CheckFailed unless `actual` has the shape, dtype and values of `expected`; a nan is never close.

    Raises:
        CheckFailed: they differ; the message names `what` and the element that is furthest off.
    """
    import torch

    if not isinstance(expected, torch.Tensor):  # a plain number prescribes no dtype
        expected = torch.tensor(float(expected), dtype=torch.float64)
        if isinstance(actual, torch.Tensor) and not actual.is_complex():
            actual = actual.double()
        elif isinstance(actual, int | float) and not isinstance(actual, bool):
            actual = torch.tensor(_as_float(actual), dtype=torch.float64)
    if not isinstance(actual, torch.Tensor):
        raise CheckFailed(f"{what} to be a tensor", _kind_of(actual), hint, picture)
    if actual.shape != expected.shape:
        raise CheckFailed(f"{what} of shape {tuple(expected.shape)}", f"shape {tuple(actual.shape)}", hint, picture)
    if actual.dtype != expected.dtype:
        raise CheckFailed(f"{what} of type {expected.dtype}", f"type {actual.dtype}", hint, picture)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    wanted, given = expected.detach().to(wide).flatten(), actual.detach().to(wide).flatten()
    excess = (given - wanted).abs() - (atol + rtol * wanted.abs())
    excess = torch.where(given == wanted, -torch.ones_like(excess), excess.nan_to_num(nan=float("inf")))
    if excess.numel() and excess.max() > 0:
        worst = int(excess.argmax())
        num_off = int((excess > 0).sum())
        where = f" at element {worst} ({num_off} of {excess.numel()} differ)" if excess.numel() > 1 else ""
        raise CheckFailed(f"{what} to be {wanted[worst]:.6g}{where}", f"{given[worst]:.6g}", hint, picture)


def _kind_of(value: Any) -> str:
    """What kind of thing it is; a number as it is, but no text: a rank may put anything into one."""
    is_short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**12)
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{value} of type {kind}" if is_short else f"a {kind}"


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an int too large for a float
        return float("inf") if number > 0 else float("-inf")
