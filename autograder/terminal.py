"""The consoles that commands print to, and the exit of commands on mistakes that the user can fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def exit_on_value_error() -> Iterator[None]:
    """Turn a ValueError, a mistake that the user can fix, into its message and an exit code."""
    try:
        yield
    except ValueError as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
