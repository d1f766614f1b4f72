"""Reading and extending CSV files in any encoding and with any delimiter that spreadsheets write."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autograder.files import write_whole
from worldsize.files import locked


@dataclass(frozen=True)
class CsvTable:
    """A CSV file: the names in its head, and its rows with the lines on which they end."""

    file: Path
    head: list[str]
    rows: list[tuple[int, dict[str, str]]]

    def where(self, line: int) -> str:
        """The file and line as text, for messages."""
        return f"{self.file.name}, line {line}"


def read_table(file: Path, encoding: str | None = None) -> CsvTable:
    """The table of a CSV file in UTF-8, or UTF-16 with its mark, between commas, semicolons or tabs.

    Raises:
        ValueError: it cannot be read; names the line.
    """
    text = text_of(file, encoding)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text), strict=True)
    rows, head = [], None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if head is None:
                head = [" ".join(cell.split()) for cell in cells]
                twice = [name for name in head if head.count(name) > 1]
                # in Canvas's reports, the header of a column of points is a number, which may repeat
                if twice and "n correct" not in head:
                    raise ValueError(f"{file} has the column {twice[0]!r} twice.")
                continue
            if len(cells) != len(head):
                raise ValueError(
                    f"{file.name}, line {reader.line_num}: it has {len(cells)} cells and the header has {len(head)}."
                )
            rows.append((reader.line_num, dict(zip(head, cells, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{file.name}, line {reader.line_num}: {error}.") from error
    return CsvTable(file, head or [], rows)


def text_of(file: Path, encoding: str | None = None) -> str:
    """Read the text of a CSV file, without a byte order mark. Raises: ValueError if it cannot be read."""
    try:
        data = file.read_bytes()
        marked = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return data.decode(encoding or marked)
    except (OSError, LookupError) as error:
        raise ValueError(f"{file} cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file.name}, line {line}: not in {(encoding or 'UTF-8').upper()}. Save the table as CSV in UTF-8; "
            "`autograder quiz mark` can be given its --encoding, such as cp1252."
        ) from error


def delimiter_of(text: str) -> str:
    """The delimiter of the first line: comma, semicolon or tab."""
    first = re.sub(r'"[^"]*"', "", text).strip().split("\n", 1)[0]
    return max(",;\t", key=first.count)


def add_row(file: Path, row: Mapping[str, str]) -> None:
    """Append a row to a table, with its delimiter and its columns; create the table if it does not exist.

    Raises:
        ValueError: the table's text cannot be read.
    """
    with locked(file):
        _add_row(file, row)


def _add_row(file: Path, row: Mapping[str, str]) -> None:
    before = text_of(file).strip("\r\n") if file.exists() else ""
    delimiter = delimiter_of(before) if before else ","
    lines = csv.reader(io.StringIO(before, newline=""), delimiter=delimiter)
    head = next((cells for cells in lines if any(cell.strip() for cell in cells)), [*row])  # as `read_table` finds it
    added = io.StringIO(newline="")
    rows = csv.writer(added, delimiter=delimiter, lineterminator="\n")
    if not before:
        rows.writerow(head)
    rows.writerow([row.get(" ".join(name.split()), "") for name in head])
    write_whole(file, f"{before}\n{added.getvalue()}" if before else added.getvalue())
