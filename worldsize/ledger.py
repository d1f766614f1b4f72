"""Predictions and results: what you expected before a cell ran, and what it computed or measured."""

from __future__ import annotations

import json
import math
import os
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsize.explore import frontend
from worldsize.files import locked, replace_file
from worldsize.units import parse_number, significant

if TYPE_CHECKING:
    from worldsize import draw

FILE_NAME = "ledger.json"


@dataclass
class Entry:
    """One predicted quantity; unknown values are None. The lesson's `section` explains the result."""

    prediction: float | None = None
    result: float | None = None
    unit: str = ""
    section: int | str | None = None

    @property
    def ratio(self) -> float | None:
        """The result divided by the prediction; None if either is missing or the prediction is 0."""
        return self.result / self.prediction if self.result is not None and self.prediction else None


@dataclass(frozen=True)
class PredictionTable:
    """A week's predictions as a table that notebooks display and that prints as text."""

    entries: dict[str, Entry]

    def rows(self) -> list[list[str]]:
        """Return the name, prediction, result and ratio of every entry, as text."""
        return [
            [
                name,
                _amount(entry.prediction, entry.unit),
                _amount(entry.result, entry.unit) or "not yet",
                f"{significant(entry.ratio)} ×" if entry.ratio is not None else "",
            ]
            for name, entry in self.entries.items()
        ]

    def __str__(self) -> str:
        return str(self._drawn())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._drawn("Predictions beside results")._repr_html_(), "text/plain": str(self)}

    def _drawn(self, title: str = "") -> draw.Table:
        from worldsize import draw  # loads matplotlib, which is not needed before a table is shown

        rows = self.rows()
        columns = ("quantity", "prediction", "result", "result / prediction")
        if all(entry.prediction is None for entry in self.entries.values()):  # of an unattended run
            rows, columns, title = ([row[0], row[2]] for row in rows), (columns[0], columns[2]), title and "Results"
        return draw.Table(columns, tuple(map(tuple, rows)), (False,) * len(columns), title, has_row_heads=True)


class Predictions:
    """The predictions of one week, in a file next to the notebook that also has those of other weeks."""

    def __init__(self, week: str, path: str | os.PathLike[str] = FILE_NAME) -> None:
        self.week, self.path = week, path
        self._asked: list[str] = []
        self._revealed: set[str] = set()  # by this run; a result without a prediction may be an unattended run's

    def ask(
        self,
        name: str,
        value: float | None,
        unit: str = "",
        *,
        section: int | str | None = None,
        choices: Sequence[float] | None = None,
    ) -> None:
        """Record your prediction of `name`; if `value` is None, ask for it, and wait.

        Each question is asked once; an unattended run prints it and goes on, and it stays open. `section` is where the
        result is derived; `choices` are magnitudes to choose from, though any number is accepted.

        Raises:
            ValueError: the value is not a number, or a prediction would change after its result is known.
        """
        if name not in self._asked:
            self._asked.append(name)
        is_known = name in self._revealed
        before: Entry | None = None
        if value is not None:
            value = _number(name, value)
        else:
            before = _read(self.path).get(self.week, {}).get(name, Entry())
            if before.prediction is None and not is_known:
                value = _answer(name, unit, choices)  # before the lock: a person may take hours
        with self._changing(name) as entry:
            is_known |= entry.prediction is not None or (before is not None and entry.result != before.result)
            if value is not None and entry.result is not None and is_known and value != entry.prediction:
                stands = _amount(entry.prediction, entry.unit) or "no prediction"
                raise ValueError(
                    f"The result of {name!r} is already known ({_amount(entry.result, entry.unit)}), so your "
                    f"prediction stays as it was: {stands}. To start over, delete {os.fspath(self.path)}."
                )
            if value is not None:
                entry.prediction = value
            entry.unit, entry.section = unit or entry.unit, section
        if entry.prediction is not None:
            print(f"{name}: you predict {_brief(entry.prediction, unit)}.")
        elif entry.result is not None:
            print(f"{name}: its result is known.")
        else:
            print(f"{name}: predict it before you read on{f', in {unit}' if unit else ''}.")

    def reveal(self, name: str, value: float, unit: str = "") -> None:
        """Record a result and print it next to the prediction, which can no longer change.

        Raises:
            ValueError: the value is not a number.
        """
        value = _number(name, value)
        self._revealed.add(name)
        with self._changing(name) as entry:
            entry.result, entry.unit = value, unit or entry.unit
        derived = "" if entry.section is None else f" Section {entry.section} derives it."
        print(f"{name}: {_comparison(entry)}.{derived}")

    def table(self) -> PredictionTable:
        """Return this week's predictions next to their results, in the order of asking."""
        entries = _read(self.path).get(self.week, {})
        names = dict.fromkeys([*self._asked, *entries])
        return PredictionTable({name: entries[name] for name in names if name in entries})

    @contextmanager
    def _changing(self, name: str) -> Iterator[Entry]:
        """Yield this week's entry for changes in the block; the ledger is locked until it is written back."""
        with locked(Path(self.path)):
            weeks = _read(self.path)
            yield weeks.setdefault(self.week, {}).setdefault(name, Entry())
            _write(self.path, weeks)


def _answer(name: str, unit: str, choices: Sequence[float] | None) -> float | None:
    """Ask the person at the front end; return None if nobody can answer."""
    if not frontend.is_interactive():
        return None
    from IPython.core.error import StdinNotImplementedError

    offered = dict(zip(string.ascii_lowercase, choices or (), strict=False))
    amount = f"a number, in {unit}" if unit else "a number"
    if offered:
        listed = ",  ".join(f"{letter}) {_brief(choice, unit)}" for letter, choice in offered.items())
        prompt = f"Your prediction, {name}?  {listed}.  A letter or {amount}: "
    else:
        prompt = f"Your prediction, {name}? A{amount[1:]}: "
    while True:
        try:
            text = input(prompt).strip()
        except StdinNotImplementedError:  # the front end takes no input after all
            return None
        if (value := offered.get(text.rstrip(")").lower())) is not None:
            return float(value)
        try:
            return parse_number(text, unit)
        except ValueError as error:
            letters = f"one of the letters {', '.join(offered)}, or " if offered else ""
            print(f"{text!r} is {error}; type {letters}{amount}, such as 12.5. A rough guess will do.")


def _comparison(entry: Entry) -> str:
    """Describe the prediction, the result, and how far apart they are."""
    prediction, result, unit = entry.prediction, entry.result, entry.unit
    is_what = f"it is {_brief(result, unit)}"
    if prediction is None:
        return is_what
    said = f"you predicted {_brief(prediction, unit)}; {is_what}"
    if prediction == result:
        return f"{said}, as you said"
    ratio = entry.ratio
    if ratio is None:
        return f"{said}, not zero"
    if ratio == 0:
        return f"{said}: nothing at all"
    if ratio < 0:
        return f"{said}, of the opposite sign"
    if 0.9 <= ratio <= 1.1:
        return f"{said}, within 10%"
    if ratio > 1:
        return f"{said}, {_factor(ratio)} times as much"
    return f"{said}, 1/{_factor(1 / ratio)} of that" if ratio < 0.1 else f"{said}, {ratio:.0%} of that"


def _factor(factor: float) -> str:
    return significant(factor, 2) if factor < 1e6 else f"{factor:.1e}"


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
    return f"{text}%" if unit == "%" else f"{text} {unit}".rstrip()


def _brief(value: float | None, unit: str) -> str:
    """Format an amount for a sentence: `3 GB` rather than a table's `3.00 GB`."""
    text, space, unit = _amount(value, unit).replace("%", " %").partition(" ")
    if "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}{space}{unit}".replace(" %", "%")


def _read(path: str | os.PathLike[str]) -> dict[str, dict[str, Entry]]:
    """Read every week's entries, by name."""
    file = Path(path)
    if not file.exists():
        return {}
    try:
        weeks = json.loads(file.read_bytes())
        return {
            week: {name: Entry(**_checked(fields)) for name, fields in entries.items()}
            for week, entries in weeks.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        copy = _free_name(file)
        file.rename(copy)
        print(f"{file} could not be read as a ledger ({error}). It is kept as {copy.name}; a new one begins.")
        return {}


def _checked(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise ValueError("its predictions are not sorted by week")
    numbers = [fields.get("prediction"), fields.get("result")]
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        raise ValueError("a prediction or result is not a number")
    return fields


def _free_name(file: Path) -> Path:
    copies = (file.with_name(f"{file.stem}.unreadable-{n}{file.suffix}") for n in range(1, 10_000))
    return next(copy for copy in copies if not copy.exists())


def _write(path: str | os.PathLike[str], weeks: dict[str, dict[str, Entry]]) -> None:
    plain = {week: {name: asdict(entry) for name, entry in entries.items()} for week, entries in weeks.items()}
    replace_file(Path(path), f"{json.dumps(plain, indent=2, ensure_ascii=False)}\n".encode())
