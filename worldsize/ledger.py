"""Predictions beside results: what you expected before a cell ran, and what it gave."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from worldsize.units import significant

FILE_NAME = "ledger.json"


@dataclass
class Entry:
    """One predicted quantity; a value that is not known yet is None."""

    prediction: float | None = None
    result: float | None = None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """Result over prediction; None while either is missing, or if the prediction is 0."""
        return self.result / self.prediction if self.result is not None and self.prediction else None


@dataclass(frozen=True)
class Table:
    """The ledger as a table that notebooks display and that prints as text."""

    entries: dict[str, Entry]

    def rows(self) -> list[list[str]]:
        """Name, prediction, result and ratio of every entry, as text."""
        return [
            [
                name,
                _amount(entry.prediction, entry.unit) or "no prediction",
                _amount(entry.result, entry.unit) or "not yet",
                f"{significant(entry.ratio)} ×" if entry.ratio is not None else "",
            ]
            for name, entry in self.entries.items()
        ]

    def __str__(self) -> str:
        rows = [["quantity", "prediction", "result", "result / prediction"], *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        heads = ("quantity", "prediction", "result", "result / prediction")
        head = "".join(f'<th scope="col" style="text-align: left">{text}</th>' for text in heads)
        body = "".join(
            f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
            + "".join(f'<td style="text-align: left">{escape(text)}</td>' for text in texts)
            + "</tr>"
            for name, *texts in self.rows()
        )
        caption = '<caption style="caption-side: top">Predictions beside results</caption>'
        html = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return {"text/html": html, "text/plain": str(self)}


def predict(name: str, value: float | None, unit: str = "", path: str | os.PathLike[str] = FILE_NAME) -> None:
    """Record your prediction of `name`, or, if `value` is None, that there is none yet.

    Raises:
        ValueError: the value is not a number, or the prediction would change although the result is known.
    """
    entries = _read(path)
    entry = entries.setdefault(name, Entry(unit=unit))
    if value is None:
        if entry.prediction is None:
            print(f"{name}: no prediction yet; put a number in place of None.")
            _write(path, entries)
        return
    value = _number(name, value)
    if entry.result is not None and value != entry.prediction:
        stands = _amount(entry.prediction, entry.unit) or "no prediction"
        raise ValueError(
            f"The result of {name!r} is already known ({_amount(entry.result, entry.unit)}), so your prediction "
            f"stays as it was: {stands}. To start over, delete {os.fspath(path)}."
        )
    entry.prediction, entry.unit = value, unit
    _write(path, entries)
    print(f"{name}: you predict {_amount(value, unit)}.")


def result(name: str, value: float, unit: str = "", path: str | os.PathLike[str] = FILE_NAME) -> None:
    """Record what was computed or measured; from then on, the prediction cannot change."""
    entries = _read(path)
    entry = entries.setdefault(name, Entry())
    entry.result, entry.unit = _number(name, value), unit or entry.unit
    _write(path, entries)


def show(path: str | os.PathLike[str] = FILE_NAME) -> Table:
    """Every prediction beside its result, as a table."""
    return Table(_read(path))


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{name!r} needs a number, such as 12.5; got {value!r}.")
    return number


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    text = significant(value) if 1e-3 <= abs(value) < 1e9 or value == 0 else f"{value:.2e}"
    return f"{text} {unit}".rstrip()


def _read(path: str | os.PathLike[str]) -> dict[str, Entry]:
    file = Path(path)
    if not file.exists():
        return {}
    try:
        return {name: Entry(**_checked(fields)) for name, fields in json.loads(file.read_bytes()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        copy = _free_name(file)
        file.rename(copy)
        print(f"{file} could not be read as a ledger ({error}). It is kept as {copy.name}; a new one begins.")
        return {}


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    numbers = [fields.get("prediction"), fields.get("result")]
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        raise ValueError("a prediction or result is not a number")
    return fields


def _free_name(file: Path) -> Path:
    copies = (file.with_name(f"{file.stem}.unreadable-{n}{file.suffix}") for n in range(1, 10_000))
    return next(copy for copy in copies if not copy.exists())


def _write(path: str | os.PathLike[str], entries: dict[str, Entry]) -> None:
    text = json.dumps({name: asdict(entry) for name, entry in entries.items()}, indent=2, ensure_ascii=False)
    folder = Path(path).resolve().parent
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".ledger-", suffix=".json")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(draft, path)  # all or nothing, even if the kernel is killed here
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
