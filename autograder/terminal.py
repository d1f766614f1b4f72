"""What commands say to the person at the keyboard, and how they end when that person can mend something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def told() -> Iterator[None]:
    """Ends the command with a sentence where its block finds something that the person at the keyboard can mend."""
    try:
        yield
    except ValueError as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
