"""Comparison of a student's result with the correct one; a failure says what to do next, and a lesson goes on."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

TODO = "your turn"  # the message of NotImplementedError in a lesson's unwritten function


class Drawn(Protocol):
    """A picture and its description in words; every figure of `worldsize.draw` is one."""

    alt: str

    def png(self) -> bytes:
        """The bytes of a PNG file."""
        ...


class CheckFailed(Exception):
    """A failed check: what was expected, what came instead, and a hint. The student sees it as one paragraph.

    `actual` may be any value; it is stored as text. `picture` draws the failure for the feedback page. It is called
    only if a picture is shown, and must not reveal anything hidden; if it raises, there is no picture.
    """

    def __init__(
        self, expected: str, actual: object, hint: str = "", picture: Callable[[], Drawn] | None = None
    ) -> None:
        self.expected, self.actual, self.hint, self.picture = expected, str(actual), hint, picture
        parts = [text if text.endswith(".") else f"{text}." for text in (f"Expected: {expected}", f"Got: {actual}")]
        super().__init__(" ".join([*parts, hint[0].upper() + hint[1:]] if hint else parts))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints instead of a traceback of our own frames."""
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
    """Raise CheckFailed unless `actual` has the shape, dtype and values of `expected`; a NaN is never close.

    Raises:
        CheckFailed: they differ; the message names `what` and the element that is furthest off.
    """
    import torch

    is_number = not isinstance(expected, torch.Tensor)
    if is_number:  # a plain number accepts any dtype
        expected = torch.tensor(float(expected), dtype=torch.float64)
        if isinstance(actual, torch.Tensor) and not actual.is_complex():
            actual = actual.double()
        elif isinstance(actual, Real) and not isinstance(actual, bool):  # NumPy's too
            actual = torch.tensor(_as_float(actual), dtype=torch.float64)
    if not isinstance(actual, torch.Tensor):
        raise CheckFailed(f"{what} to be a {'number' if is_number else 'tensor'}", _kind_of(actual), hint, picture)
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
    """Describe a value by its type, or a number by itself; never quote text, which may hold anything."""
    is_short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**12)
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{value} of type {kind}" if is_short else f"a {kind}"


def _as_float(number: float | Real) -> float:
    try:
        return float(number)
    except OverflowError:  # an int too large for a float
        return float("-inf") if number < 0 else float("inf")


@contextmanager
def turn(name: str) -> Iterator[None]:
    """Check, in a lesson, the function `name` that students write: failures inside the block are shown, not raised.

    If the function is not written yet, say so; show a failed check, an error in the function or a failed run as a box
    under the cell, whose text begins with "Not yet:".
    """
    from worldsize.launch import RunError, RunStopped

    try:
        yield
    except RunStopped:  # by the student
        raise
    except Exception as error:
        failure = error.failures[0] if isinstance(error, RunError) and error.failures else None
        if _is_unwritten(error, name) or (failure and _is_stub(failure.kind, failure.message)):
            print(f"{name} is not written yet. Write it in the cell above, run that cell, and then run this one again.")
        elif isinstance(error, CheckFailed):
            _show(
                FailureBox(name, (("expected", error.expected), ("got", error.actual), ("hint", error.hint))),
                error.picture,
            )
        elif failure and failure.kind == CheckFailed.__name__:
            _show(FailureBox(name, (("", failure.message),)))
        elif isinstance(error, RunError):
            _show(FailureBox(name, (), str(error)))
        else:
            _show(FailureBox(name, (("", _headline(error)),), _place(error)))


def _is_unwritten(error: BaseException | None, name: str) -> bool:
    """Whether the function's stub was called, or its cell has not run."""
    while error is not None:
        if isinstance(error, NameError) and error.name == name:
            return True
        if _is_stub(type(error).__name__, str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_stub(kind: str, message: str) -> bool:
    return kind == NotImplementedError.__name__ and message in (TODO, "")  # torch raises it with different messages


def _headline(error: Exception) -> str:
    try:
        message = str(error)
    except Exception:  # the error's own `__str__` may fail
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _place(error: Exception) -> str:
    """Quote the student's innermost line that led to the error."""
    from worldsize.source import own_lines, quote

    return "\n".join(quote(own_lines(traceback.extract_tb(error.__traceback__))[-1:]))


@dataclass(frozen=True)
class FailureBox:
    """What failed, as a notebook shows it under a check: facts with their names, and a report in fixed width."""

    name: str
    facts: tuple[tuple[str, str], ...]
    report: str = ""

    def __repr__(self) -> str:
        width = max((len(label) for label, text in self.facts if text), default=0) + 1
        facts = [f"  {label + ':':<{width}} {text}" if label else f"  {text}" for label, text in self.facts if text]
        return "\n".join([f"Not yet: {self.name}", *facts, *([self.report] if self.report else [])])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        facts = "".join(
            f"<div><b>{label.capitalize()}:</b> {_with_code(text)}</div>" if label else f"<div>{_with_code(text)}</div>"
            for label, text in self.facts
            if text
        )
        report = f'<pre style="white-space: pre-wrap; margin: 0.5em 0 0">{escape(self.report)}</pre>'
        # text and background have the front end's colours, to suit light and dark themes
        html = (
            '<div role="status" style="border-left: 4px solid #D55E00; padding: 0.2em 0.8em; line-height: 1.5">'
            f"<div><b>✗ Not yet: <code>{escape(self.name)}</code></b></div>{facts}{report if self.report else ''}</div>"
        )
        return {"text/html": html, "text/plain": repr(self)}


def _with_code(text: str) -> str:
    """Convert text to HTML, with text between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def _show(box: FailureBox, picture: Callable[[], Drawn] | None = None) -> None:
    from IPython.display import display

    display(box)
    if picture is not None:
        with contextlib.suppress(Exception):  # a picture that cannot be drawn must not hide the words
            display(picture())
