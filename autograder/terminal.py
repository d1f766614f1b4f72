"""The consoles that commands print to, and how commands end on a mistake that the user can fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def exit_on_value_error() -> Iterator[None]:
    """End the command with the message of a ValueError, which names a mistake that the user can fix."""
    try:
        yield
    except ValueError as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
