"""Numbers and texts that a question computes from its parameters, with Jinja's sandboxed expressions and templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

from jinja2 import StrictUndefined, TemplateSyntaxError
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import AfterValidator, StringConstraints

from worldsize import units

Value: TypeAlias = bool | int | float | str


def _shown(value: Any) -> Any:
    """Return a number as a person writes it: 0.3 and not 0.30000000000000004, 25,600,000 and not 25600000."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}"
    return f"{value:.6g}"


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates share one plain dict of functions: with the usual chain of two, each use takes three
    times as long.
    """

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        assert d is None
        return self.globals


_ENVIRONMENT = _Environment(undefined=StrictUndefined, finalize=_shown, autoescape=False)
_ENVIRONMENT.globals = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log2": math.log2,
    "max": max,
    "min": min,
    "pi": math.pi,
    "range": _ENVIRONMENT.globals["range"],  # Jinja's own, of limited length
    "round": round,
    "sin": math.sin,
    "sqrt": math.sqrt,
}
_ENVIRONMENT.filters |= {
    "bytes": units.format_bytes,
    "count": units.format_count,
    "percent": lambda fraction, digits=3: f"{units.significant(100 * fraction, digits)}%",
    "significant": units.significant,
    "time": units.format_time_s,
}


@lru_cache(maxsize=4096)
def _expression(source: str) -> Callable[..., Any]:
    return _ENVIRONMENT.compile_expression(source, undefined_to_none=False)


@lru_cache(maxsize=4096)
def _template(source: str) -> Any:
    return _ENVIRONMENT.from_string(source)


def evaluate(source: str, names: Mapping[str, Value]) -> Any:
    """Compute an expression such as `2 * (n - 1) / n * size_mb`.

    Raises:
        ValueError: it uses an unknown name, or cannot be computed; the message names the expression and the reason.
    """
    try:
        return _checked(_expression(source)(**names))
    except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"{source!r} cannot be computed with {_listed(names)}: {error}") from error


def fill(source: str, names: Mapping[str, Value]) -> str:
    """Replace every `{{ expression }}` in a text by its value.

    Raises:
        ValueError: it uses an unknown name, or cannot be computed; the message names the text and the reason.
    """
    try:
        return _template(source).render(**names).strip()
    except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
        begin = " ".join(source.split())[:60]
        raise ValueError(f"the text {begin!r} cannot be filled in with {_listed(names)}: {error}") from error


def _checked(value: Any) -> Any:
    if isinstance(value, StrictUndefined):
        str(value)  # raises, and names what is missing
    return value


def _listed(names: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in names.items()) or "no parameters"


def _compiles(compile_source: Callable[[str], Any]) -> AfterValidator:
    def check(source: str) -> str:
        try:
            compile_source(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"{source!r} is not well formed: {error}") from None
        return source

    return AfterValidator(check)


_written = StringConstraints(strip_whitespace=True, min_length=1)
Expression: TypeAlias = Annotated[str, _written, _compiles(_expression)]
Template: TypeAlias = Annotated[str, _written, _compiles(_template)]
