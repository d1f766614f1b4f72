"""The notes that a rank writes during an audited run, a JSON line each, and their reader."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from worldsize.source import Line, line_of

FOLDER, EVERY = "WORLDSIZE_AUDIT", "WORLDSIZE_AUDIT_EVERY"  # environment variables of an audited rank
COMPARED = "WORLDSIZE_AUDIT_COMPARED"  # the same, if its forward passes are noted for a comparison of two runs
PERTURBED = "WORLDSIZE_AUDIT_PERTURBED"  # the same, if initial weights are changed in their last bits
_MOST_NOTES = 100_000  # of a rank; those of the next kinds are kept in any case
_LAST = ("ended", "failures", "weights at the end", "buffers at the end", "not waited for")


@dataclass(frozen=True)
class Note:
    """One observation: of which kind, on which rank, at which optimizer step (counted from 1), on which line."""

    kind: str
    rank: int
    step: int
    line: Line | None
    about: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.about[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return what is noted under a name, if anything is."""
        return self.about.get(name, default)


def as_list(line: Line | None) -> list[Any] | None:
    """A line as JSON has it; `Line(*...)` makes it again."""
    return [line.filename, line.number, line.function, line.text] if line else None


class Notebook:
    """A rank's file of notes; `step` is the optimizer step that is in progress."""

    def __init__(self, folder: str, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.step = rank, world_size, 1
        self._pid, self._num_notes = os.getpid(), 0
        os.makedirs(folder, exist_ok=True)
        self._file: IO[str] = open(Path(folder) / f"rank{rank}.jsonl", "w", encoding="utf-8")  # noqa: SIM115
        self.say("started", world_size=world_size)

    def say(self, kind: str, line: Line | None = None, /, **about: Any) -> None:
        """Write a note, by default with the line of the program that is running."""
        if os.getpid() != self._pid or self._file.closed:  # in a worker of a data loader, or after the end
            return
        if self._num_notes >= _MOST_NOTES and kind not in _LAST:
            return
        self._num_notes += 1
        line = line or line_of(sys._getframe(1))
        note = {"kind": kind, "step": self.step, "line": as_list(line), "about": about}
        self._file.write(json.dumps(note) + "\n")

    @property
    def is_full(self) -> bool:
        """Whether notes have been dropped."""
        return self._num_notes >= _MOST_NOTES

    def flush(self) -> None:
        """Make what has been noted readable, however this process ends."""
        if os.getpid() == self._pid:
            self._file.flush()

    def close(self) -> None:
        """Write the last notes; later ones are dropped."""
        if os.getpid() == self._pid:
            self._file.close()


@dataclass(frozen=True)
class RankNotes:
    """All notes of one rank, in their order."""

    rank: int
    notes: list[Note]

    def of(self, kind: str) -> list[Note]:
        """The rank's notes of one kind."""
        return [note for note in self.notes if note.kind == kind]


def read(folder: str | os.PathLike[str]) -> list[RankNotes]:
    """Read the notes of all ranks.

    Raises:
        ValueError: there are none.
    """
    files = {int(path.stem.removeprefix("rank")): path for path in Path(folder).glob("rank*.jsonl")}
    if not files:
        raise ValueError(f"{os.fspath(folder)} has no notes of an audited run; was it the folder of this run?")
    ranks = [RankNotes(rank, list(_notes(rank, files[rank]))) for rank in sorted(files)]
    world_size = next((note["world_size"] for note in ranks[0].of("started")), len(ranks))
    return [one for one in ranks if one.rank < world_size]  # without those of an earlier, larger run


def _notes(rank: int, path: Path) -> Iterator[Note]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            if not text.endswith("\n"):  # the rank was killed while it wrote
                return
            note = json.loads(text)
            line = Line(*note["line"]) if note["line"] else None
            yield Note(note["kind"], rank, note["step"], line, note["about"])
