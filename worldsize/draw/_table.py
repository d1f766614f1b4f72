"""A table of rows: numbers with units, for notebooks, pages and plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from textwrap import fill
from typing import Any

from worldsize import units

_UNITS = (
    "_flops_per_s",
    "_bytes_per_s",
    "_fraction",
    "_bytes",
    "_flops",
    "_s",
)  # which cells show
_MARK = "←"
_CAPTION = "caption-side: top; text-align: left; padding: 2px 8px; min-width: 24em"  # a narrow table's too
_WIDTH = 110  # of the lines of a note in plain text


@dataclass(frozen=True)
class Table:
    """Cells as text under column names; notebooks display it, and it prints as text."""

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    is_number: tuple[bool, ...]  # by column
    title: str = ""
    note: str = ""
    marked: frozenset[int] = frozenset()  # rows
    has_row_heads: bool = False  # the first column names the rows

    def __str__(self) -> str:
        rows = [*([self.columns] if any(self.columns) else []), *self.cells]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.columns))]
        lines = [
            "  ".join(
                text.rjust(width) if is_number else text.ljust(width)
                for text, width, is_number in zip(row, widths, self.is_number, strict=True)
            )
            + (f"  {_MARK}" if number in self.marked else "")
            for number, row in enumerate(rows, start=len(self.cells) - len(rows))
        ]
        notes = [fill(line, _WIDTH) for line in self.note.splitlines()]
        return "\n".join(line.rstrip() for line in [*([self.title] if self.title else []), *lines, *notes])

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": str(self)}

    def _repr_html_(self) -> str:
        aligns = ["right" if is_number else "left" for is_number in self.is_number]
        head = "".join(
            f'<th scope="col" style="text-align: {align}; padding: 2px 8px">{escape(name)}</th>'
            for name, align in zip(self.columns, aligns, strict=True)
        )
        body = "".join(
            f"<tr{self._row_style(number)}>" + "".join(map(self._cell, range(len(row)), row)) + "</tr>"
            for number, row in enumerate(self.cells)
        )
        caption = f'<caption style="{_CAPTION}">{escape(self.title)}</caption>' if self.title else ""
        heads = f"<thead><tr>{head}</tr></thead>" if any(self.columns) else ""
        notes = "".join(f"<p>{escape(line)}</p>" for line in self.note.splitlines())
        return f"<table>{caption}{heads}<tbody>{body}</tbody></table>{notes}"

    def _cell(self, column: int, text: str) -> str:
        style = self._cell_style(column)
        if self.has_row_heads and column == 0:
            return f'<th scope="row" style="{style}">{escape(text)}</th>'
        return f'<td style="{style}">{escape(text)}</td>'

    def _cell_style(self, column: int) -> str:
        aligned = "text-align: right; white-space: nowrap" if self.is_number[column] else "text-align: left"
        return f"{aligned}; padding: 2px 8px"

    def _row_style(self, number: int) -> str:
        return ' style="font-weight: bold"' if number in self.marked else ""


def table(
    rows: Sequence[Any], title: str = "", note: str = "", marked: Collection[int] = (), columns: Sequence[str] = ()
) -> Table:
    """Make a table with a row for each mapping and a column for each of their keys, in the order in which they appear.

    With `columns`, the names of the columns, each row is a sequence of as many values instead. A number is shown in the
    unit that its column's name ends in, such as `step_s`, `held_bytes` or `mfu_fraction`; text is shown as it is, and
    an absent value as an empty cell. `marked` are numbers of rows, counted from 0, that stand out. `note` is for the
    lines below the table.

    Raises:
        ValueError: there are no rows or no columns, a row has more or fewer values than there are `columns`, or
            `marked` has a number without a row.
    """
    if columns:
        if odd := [row for row in rows if len(row) != len(columns)]:
            raise ValueError(f"A row needs {len(columns)} values, for {', '.join(columns)}; got {odd[0]}")
        rows = [dict(zip(columns, row, strict=True)) for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise ValueError("There is no table to draw: give [{column: value, ...}, ...], one mapping for each row.")
    if absent := [number for number in marked if not 0 <= number < len(rows)]:
        raise ValueError(f"There is no row {absent[0]} to mark: rows are counted from 0 to {len(rows) - 1}.")
    values = [[plain(row.get(name)) for name in names] for row in rows]
    are_numbers = [all(row[column] is None or is_number(row[column]) for row in values) for column in range(len(names))]
    texts = [_texts(name, [row[column] for row in values]) for column, name in enumerate(names)]
    cells = tuple(zip(*texts, strict=True))
    return Table(tuple(head(name) for name in names), cells, tuple(are_numbers), title, note, frozenset(marked))


def plain(value: Any) -> Any:
    """Convert a number of NumPy or torch to Python's, and an array to lists; return anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else value


def is_number(value: Any) -> bool:
    """Whether a value is a number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _texts(name: str, values: Sequence[Any]) -> list[str]:
    """Format the cells of a column in units that compare at a glance: seconds if some times are under a minute."""
    is_time = name.endswith("_s") and not name.endswith("_per_s")
    is_short = is_time and any(is_number(value) and 0 < value < units.MINUTE for value in values)
    texts = [cell(name, value, in_seconds=is_short) for value in values]
    is_size = name.endswith(("_bytes", "_bytes_per_s"))
    units_of = {text.rpartition(" ")[2].removesuffix("/s") for text in texts if is_size} - {"", "B"}
    if len({unit.endswith("iB") for unit in units_of}) > 1:  # MiB beside MB would compare badly
        texts = [cell(name, value, is_decimal=True) for value in values]
    return texts


def cell(name: str, value: Any, in_seconds: bool = False, is_decimal: bool = False) -> str:
    """Format a value as a table shows it, in the unit that `name` ends in."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not is_number(value):
        return str(value)
    if in_seconds and units.MINUTE <= value < units.HOUR:
        return f"{units.significant(value)} s"
    return units.format_as(name, value if isinstance(value, int) else float(value), decimal=is_decimal)


def head(name: str) -> str:
    """Return a column's name without its unit: `step` for `step_s`."""
    unit = next((unit for unit in _UNITS if name.endswith(unit) and name != unit), "")
    return name.removesuffix(unit).replace("_", " ")
