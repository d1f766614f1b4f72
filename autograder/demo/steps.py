"""Steps of the demo: running commands with their output in logs, and showing progress on the terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

_RESULT = re.compile(r"\] (\w+: (?:[\d.]+ of [\d.]+ points|malformed submission).*)")


class StepFailed(RuntimeError):
    """A step of the demo failed; the text holds the last lines of its output and the path of its log."""


@contextmanager
def progress(source: Path, executed: Path) -> Iterator[None]:
    """Show a bar that follows the executed notebook, which papermill saves after every cell."""
    num_cells = len(nbformat.read(source, as_version=4).cells)
    ended = threading.Event()

    def follow() -> None:
        with Progress("  ", BarColumn(), MofNCompleteColumn(), "cells", TimeElapsedColumn()) as bar:
            task = bar.add_task("", total=num_cells)
            is_last = False
            while not is_last:
                is_last = ended.wait(0.5)
                with suppress(OSError):  # it does not exist yet
                    bar.update(task, completed=executed.read_text(encoding="utf-8").count('"status": "completed"'))

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


class DemoSteps:
    """The steps of a demo on the terminal: each says what it does, and how long it took."""

    def __init__(self, console: Console, num_steps: int) -> None:
        self._console, self._num_steps, self._number = console, num_steps, 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce a step, and report when it is done."""
        self._number += 1
        self._console.print(f"[bold]{self._number} of {self._num_steps}: {what}[/]")
        start_s = time.monotonic()
        yield
        self._console.print(f"  [green]done[/] in {time.monotonic() - start_s:.0f} s")


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def run(command: list[str], cwd: Path, log: Path) -> None:
    """Run a command with its output in a log, and show each submission's result as soon as it is known."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    with process, open(log, "w", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            if result := _RESULT.search(line):
                print(f"  {result[1]}", flush=True)
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-30:])
        raise StepFailed(
            f"{' '.join(command)} failed with exit code {process.returncode}.\n{tail}\nThe whole log: {log}"
        )
