"""Views of a run while it lasts: none, plain lines, or the live view of a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from worldsize.launch.display.output import Lines, Tail

_SHOWN_CHARACTERS = 256 << 10  # of all ranks together; more would freeze a browser
_END_CHARACTERS = 2000  # of each rank that was not shown whole


class Ranks(Protocol):
    """What a view reads from the ranks: states in words, output, number of restarts, warnings."""

    tails: dict[int, Tail]
    restarts: int

    @property
    def warnings(self) -> Sequence[str]: ...

    @property
    def states(self) -> Sequence[tuple[int, str]]: ...


class View:
    """A view that shows nothing; the base class of the other views."""

    is_stop_asked = False

    def begin(self, headline: str) -> None:
        """Take the line that says where the ranks run; called each time a rank joins."""

    def output(self, rank: int, text: str) -> None:
        """Take what a rank printed, as it comes."""

    def glance(self, ranks: Ranks) -> None:
        """Update from the ranks' state; called ten times a second."""

    def end(self, ranks: Ranks) -> None:
        """Finish; called when no rank is running, possibly more than once."""


class Shielded(View):
    """A view whose errors never reach the run: once it has failed, nothing more is shown."""

    def __init__(self, view: View) -> None:
        self._asked = self._view = view

    @property
    def is_stop_asked(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the stop button has been pressed; it still works after the view has failed."""
        return self._asked.is_stop_asked

    def begin(self, headline: str) -> None:
        """Pass on the headline."""
        self._try(lambda view: view.begin(headline))

    def output(self, rank: int, text: str) -> None:
        """Pass on what a rank printed."""
        self._try(lambda view: view.output(rank, text))

    def glance(self, ranks: Ranks) -> None:
        """Pass on the ranks' state."""
        self._try(lambda view: view.glance(ranks))

    def end(self, ranks: Ranks) -> None:
        """Pass on the end of the run."""
        self._try(lambda view: view.end(ranks))

    def _try(self, show: Callable[[View], None]) -> None:
        try:
            show(self._view)
        except Exception:  # such as a closed pipe
            self._view = View()


class Plain(View):
    """Lines prefixed with their rank, as they come; beyond a limit, only the end of what remains."""

    def __init__(self) -> None:
        self._lines: dict[int, Lines] = {}
        self._left = _SHOWN_CHARACTERS
        self._hidden: dict[int, int] = {}  # lines by rank
        self._has_begun = self._has_ended = False

    def begin(self, headline: str) -> None:
        """Print one line that says where the ranks run."""
        if not self._has_begun:
            self._has_begun = True
            _write(headline + "\n")

    def output(self, rank: int, text: str) -> None:
        """Print whole lines, up to the limit."""
        self._show(rank, self._lines.setdefault(rank, Lines()).feed(text))

    def _show(self, rank: int, lines: list[str]) -> None:
        text = "".join(f"[rank {rank}] {line}\n" for line in lines)
        if lines and not self._hidden and len(text) > self._left:
            _write(f"... more than {_SHOWN_CHARACTERS >> 10} kB: from here on, only the end of what each rank prints\n")
            self._hidden[rank] = 0
        if self._hidden:
            self._hidden[rank] = self._hidden.get(rank, 0) + len(lines)
        else:
            self._left -= len(text)
            _write(text)

    def end(self, ranks: Ranks) -> None:
        """Print unfinished lines, the end of any output over the limit, and the warnings."""
        if self._has_ended:
            return
        self._has_ended = True
        for rank, lines in sorted(self._lines.items()):
            self._show(rank, lines.end())
        for rank, num_lines in sorted(self._hidden.items()):
            if num_lines:
                last = ranks.tails[rank].last(_END_CHARACTERS).splitlines()
                _write(f"[rank {rank}] ... {num_lines} lines, the last of them:\n")
                _write("".join(f"[rank {rank}] {line}\n" for line in last))
        for warning in ranks.warnings:
            _write(f"Warning: {warning}\n")


def _write(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # a terminal's encoding may lack characters that ranks print
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
