"""The values that each argument of a function can take: a slider's positions, a list, a check box, or one value."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from worldsize import units

_MOST_STEPS = 100  # of a range without a step
_MOST_POSITIONS = 2000
_WIDE = 1000  # a range whose ends are this far apart grows by doubling


@dataclass(frozen=True)
class Control:
    """The values of one argument, each with its text, and the one that it starts with."""

    name: str
    kind: Literal["slider", "list", "box"]
    options: list[tuple[str, Any]]
    start: int

    @property
    def value(self) -> Any:
        """The value that it starts with."""
        return self.options[self.start][1]

    def text(self, value: Any) -> str:
        """Format a value."""
        return next((text for text, option in self.options if option is value), None) or _text(self.name, value)

    def describe(self) -> str:
        """Describe the values to choose from."""
        texts = [text for text, _ in self.options]
        return f"{texts[0]} to {texts[-1]}" if self.kind == "slider" else " or ".join(texts)


def controls_of(function: Callable[..., Any], ranges: Mapping[str, Any]) -> tuple[list[Control], dict[str, Any]]:
    """Make a control for each argument with a range, in the order of `ranges`; return the fixed arguments' values too.

    Raises:
        ValueError: a malformed range, an argument that the function does not have, or one without a value.
    """
    if not callable(function):
        raise ValueError(f"explore needs a function, such as explore(step_time_s, ...); got {function!r}.")
    parameters = _parameters(function)
    name = getattr(function, "__name__", "the function")
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        key: parameter
        for key, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    if parameters and not takes_any and (unknown := sorted(ranges.keys() - named)):
        raise ValueError(f"{name} has no argument {unknown[0]!r}: it has {', '.join(named) or 'none'}.")
    if missing := [
        key for key, parameter in named.items() if parameter.default is parameter.empty and key not in ranges
    ]:
        raise ValueError(f"{name} needs {missing[0]}: give it a range, such as {missing[0]}=(1, 64), or a value.")
    controls, fixed = [], {}
    for key, given in ranges.items():
        default = named[key].default if key in named else inspect.Parameter.empty
        control = _control(key, given, default)
        if control:
            controls.append(control)
        else:
            fixed[key] = given
    return controls, fixed


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return {}


def _control(name: str, given: Any, default: Any) -> Control | None:
    """Make the control for a range; None for a single value."""
    if isinstance(given, bool):
        return Control(name, "box", [("no", False), ("yes", True)], int(given))
    if isinstance(given, tuple):
        return _slider(name, _positions(name, given), default)
    if isinstance(given, range):
        if not given:
            raise ValueError(f"{name}={given!r} is empty: give at least one value, such as range(1, 9).")
        return _slider(name, list(given), default)
    if isinstance(given, list | Mapping) and given:
        pairs = given.items() if isinstance(given, Mapping) else ((_text(name, value), value) for value in given)
        options = [(str(text), value) for text, value in pairs]
        start = next((index for index, (_, value) in enumerate(options) if _is_same(value, default)), 0)
        return Control(name, "list", options, start)
    return None


def _slider(name: str, positions: list[Any], default: Any) -> Control:
    start = len(positions) // 2
    if _is_number(default):
        if positions[0] < default < positions[-1]:
            positions = sorted({*positions, default})
        start = min(range(len(positions)), key=lambda index: abs(positions[index] - default))
    return Control(name, "slider", [(_text(name, value), value) for value in positions], start)


def _positions(name: str, given: tuple[Any, ...]) -> list[Any]:
    """List the values of a slider, from low to high."""
    low, high, step = [*given, None][:3] if 2 <= len(given) <= 3 else [math.nan] * 3
    if not (_is_number(low) and _is_number(high) and low < high):
        raise ValueError(
            f"{name}={given!r} is not a range: give (low, high), (low, high, step) or (low, high, 'x2') to double; "
            "a list or a dict for a choice."
        )
    if step is None:
        is_wide = low > 0 and high / low >= _WIDE
        step = "x2" if is_wide else max(1, -(-(high - low) // _MOST_STEPS)) if _are_int(low, high) else None
    values = _multiplied(name, low, high, step) if isinstance(step, str) else _added(name, low, high, step)
    return values if values[-1] == high else [*values, high]


def _count(name: str, steps: float) -> int:
    """Count the positions of a slider with this many steps.

    Raises:
        ValueError: there are too many.
    """
    if steps >= _MOST_POSITIONS:
        raise ValueError(f"{name}: this range has {steps + 1:,.0f} positions; at most {_MOST_POSITIONS:,} are allowed.")
    return math.floor(steps * (1 + 1e-12)) + 1


def _added(name: str, low: Any, high: Any, step: Any) -> list[Any]:
    step = (high - low) / _MOST_STEPS if step is None else step
    if not (_is_number(step) and step > 0):
        raise ValueError(f"{name}: the step {step!r} is neither a number above 0 nor of the form 'x2'.")
    return [_neat(low + index * step) for index in range(_count(name, (high - low) / step))]


def _multiplied(name: str, low: Any, high: Any, step: str) -> list[Any]:
    try:
        factor = float(step.removeprefix("x"))
    except ValueError:
        factor = 0.0
    if not (low > 0 and step.startswith("x") and 1 < factor < math.inf):
        raise ValueError(f"{name}: to multiply, start above 0 and give a factor above 1, such as (1, 1024, 'x2').")
    values = [low * factor**index for index in range(_count(name, math.log(high / low) / math.log(factor)))]
    whole = _are_int(low, high) and sorted({round(value) for value in values})
    return whole or [_neat(value) for value in values]


def _text(name: str, value: Any) -> str:
    if _is_number(value):
        return units.format_as(name, value)
    return str(getattr(value, "__name__", None) or getattr(value, "name", None) or value)


def _neat(value: Any) -> Any:
    """Remove the rounding error of adding floats."""
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _are_int(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
