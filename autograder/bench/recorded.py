"""Results recorded on machines with GPUs: the files of docs/measured, which `make gpu` writes and the site shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from worldsize.bench.machine import Machine

FOLDER = Path("docs", "measured")


class _RecordModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RecordTable(_RecordModel):
    """A table that a cell of a lesson gave, its numbers as it showed them."""

    cell: str
    title: str
    columns: list[str]
    rows: list[list[str]]


class RecordPart(_RecordModel):
    """One part of a record: whether it ran to its end, and what it measured."""

    name: str  # a week, a lab, or the quantity measured
    outcome: Literal["passed", "failed", "skipped"]
    why: str = ""  # why it failed or was skipped
    took_s: float
    tables: list[RecordTable] = []
    data: dict[str, Any] = {}


class Record(_RecordModel):
    """One run of `make gpu` on one machine. A stand-in ran on processor cores, to try the recording itself."""

    format: Literal["worldsize-measured-1"] = "worldsize-measured-1"
    measured_at: str  # UTC, ISO 8601
    is_stand_in: bool
    machine: Machine
    num_ranks: int
    backend: Literal["nccl", "gloo"]
    parts: list[RecordPart]

    @property
    def where(self) -> str:
        """The machine and the day in words."""
        gpus = self.machine.gpus
        what = f"{len(gpus)} x {gpus[0]}" if gpus else f"{self.machine.num_cores} cores, no GPU"
        return f"{what}, {self.measured_at[:10]}"

    @property
    def file_name(self) -> str:
        """A name for its file: the machine and the day."""
        kind = "cpu-stand-in" if self.is_stand_in else f"{self.machine.gpus[0]} x{len(self.machine.gpus)}"
        return f"{re.sub(r'[^a-z0-9]+', '-', kind.lower()).strip('-')}-{self.measured_at[:10]}.json"

    def part(self, name: str) -> RecordPart | None:
        """The part of this name."""
        return next((one for one in self.parts if one.name == name), None)


def write(record: Record, folder: Path) -> Path:
    """Write a record, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.file_name
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_all(root: Path) -> list[Record]:
    """Read the records of a course, the newest first.

    Raises:
        ValueError: a file is not a record, or was recorded on CPU cores.
    """
    found = []
    for path in sorted((root / FOLDER).glob("*.json")):
        try:
            record = Record.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ValueError(f"{path} is not a record of `make gpu`: {error}") from None
        if record.is_stand_in or not record.machine.gpus:
            raise ValueError(f"{path} was measured on CPU cores: only runs on GPUs belong in {FOLDER}.")
        found.append(record)
    return sorted(found, key=lambda record: record.measured_at, reverse=True)
