"""A CSV file in any encoding and with any delimiter that spreadsheets write."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """A CSV file: the names in its head, and its rows with the lines on which they end."""

    file: Path
    head: list[str]
    rows: list[tuple[int, dict[str, str]]]

    def where(self, line: int) -> str:
        """A place in it."""
        return f"{self.file.name}, line {line}"


def read_table(file: Path, encoding: str | None = None) -> Table:
    """The table of a CSV file in UTF-8, or UTF-16 with its mark, between commas, semicolons or tabs.

    Raises:
        ValueError: it cannot be read; names the line.
    """
    try:
        data = file.read_bytes()
        marked = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        text = data.decode(encoding or marked)
    except (OSError, LookupError) as error:
        raise ValueError(f"{file} cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file.name}, line {line}: not in {(encoding or 'UTF-8').upper()}. Save the table as CSV in UTF-8, or "
            "name its --encoding, such as cp1252."
        ) from error
    first = re.sub(r'"[^"]*"', "", text).strip().split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, head = [], None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if head is None:
                head = [" ".join(cell.split()) for cell in cells]
                twice = [name for name in head if head.count(name) > 1]
                if twice and "n correct" not in head:  # Canvas heads every column of points with a number
                    raise ValueError(f"{file} has the column {twice[0]!r} twice.")
                continue
            if len(cells) != len(head):
                raise ValueError(
                    f"{file.name}, line {reader.line_num}: it has {len(cells)} cells and the head has {len(head)}."
                )
            rows.append((reader.line_num, dict(zip(head, cells, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{file.name}, line {reader.line_num}: {error}.") from error
    return Table(file, head or [], rows)
