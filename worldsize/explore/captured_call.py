"""One call of the explored function: what it returned, printed or drew, or how it failed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from IPython.utils.capture import capture_output

from worldsize.source import own_lines

_MOST_PRINTED = 2000


@dataclass(frozen=True)
class CallResult:
    """What a call returned and printed, or the message with which it failed and the student's line that failed."""

    value: Any = None
    printed: str = ""
    displayed: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    place: str = ""


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> CallResult:
    """Call the function; nothing that it prints, displays or draws with pyplot reaches the cell."""
    value, error, place = None, "", ""
    already = _open_figures()
    with capture_output() as captured:
        try:
            value = function(**arguments)
        except KeyboardInterrupt:
            error = "Interrupted. Move a slider to try again."
        except Exception as raised:
            error, place = _sentence(raised), _place(raised)
    drawn = _close_figures(already)
    printed = (captured.stdout + captured.stderr)[-_MOST_PRINTED:]
    displayed = [output.data for output in captured.outputs]
    return CallResult(drawn if value is None and not error else value, printed, displayed, error, place)


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    is_meant_for_reading = text and isinstance(error, ValueError | AssertionError | NotImplementedError)
    return text if is_meant_for_reading else f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception) -> str:
    """Return the student's own line; empty if that line raises the error on purpose."""
    lines = own_lines(traceback.extract_tb(error.__traceback__))
    if not lines or "raise " in lines[-1].text:
        return ""
    return f"{lines[-1]}: {lines[-1].text}" if lines[-1].text else str(lines[-1])


def _open_figures() -> set[int]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return set(pyplot.get_fignums()) if pyplot else set()


def _close_figures(already: set[int]) -> Any:
    """Close the figures that pyplot has opened since; return the last one, or None."""
    drawn = None
    for number in sorted(_open_figures() - already):
        drawn = sys.modules["matplotlib.pyplot"].figure(number)
        sys.modules["matplotlib.pyplot"].close(number)
    return drawn
