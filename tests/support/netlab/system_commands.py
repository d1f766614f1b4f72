"""Commands of the system, each with the one that undoes it."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Callable


class Refused(ValueError):
    """A command that failed, with its error output."""


class Commands:
    """Commands that are passed to `say` before they run, and undone on leaving, the last one first."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.say = say or (lambda _: None)
        self._stack = contextlib.ExitStack()

    def run(self, command: str, undo: str | None = None) -> None:
        """Run a command, and `undo` at the end.

        Raises:
            Refused: it did not succeed.
        """
        if undo:  # registered first, so that nothing comes between: undoing what was not done merely fails
            self._stack.callback(subprocess.run, shlex.split(undo), capture_output=True)
        self.say(command)
        done = subprocess.run(shlex.split(command), capture_output=True, text=True)
        if done.returncode != 0:
            raise Refused(f"`{command}` failed: {done.stderr.strip()}")

    def keep(self, running: contextlib.AbstractContextManager[object]) -> None:
        """Enter a context manager and leave it at the end."""
        self._stack.enter_context(running)

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
