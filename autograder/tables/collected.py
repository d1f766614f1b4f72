"""The submission times in `collected.csv` at the root of the course, which no student can write.

The collectors add rows: `nbgrader collect` from the name of the exchange's folder, `nbgrader zip_collect` from the
names of files. If you collect in another way, write it yourself: a header `assignment,student,submitted`, times like
2026-11-30 23:59:00 UTC; the last row for a student counts. A submission that no collector recorded is not late.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from dateutil.tz import gettz
from nbgrader.utils import parse_utc

from autograder.files import neutral
from autograder.tables.csv_table import add_row, delimiter_of, text_of

COLLECTED = "collected.csv"
_COLUMNS = ["assignment", "student", "submitted", "from"]
_OFFSET = re.compile(r" (?=[+-]\d\d:?\d\d$)")


def read_collected(root: Path) -> Mapping[tuple[str, str], datetime]:
    """Read the submission time of each (assignment, student), in UTC; empty without a file.

    Raises:
        ValueError: a row cannot be read; the text says which.
    """
    path = root / COLLECTED
    return _times(path, text_of(path)) if path.exists() else {}


@lru_cache(maxsize=1)  # commands ask for the time of one submission after the other
def _times(path: Path, text: str) -> Mapping[tuple[str, str], datetime]:
    times: dict[tuple[str, str], datetime] = {}
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
    for row in rows:
        if not any(cell and str(cell).strip() for cell in row.values()):
            continue  # a spreadsheet leaves such rows
        try:
            times[row["assignment"].strip(), row["student"].strip()] = _in_utc(row["submitted"].strip())
        except (KeyError, AttributeError, ValueError, OverflowError):
            raise ValueError(
                f"{path}, line {rows.line_num}: write assignment,student,submitted there, "
                "with a time such as 2026-11-30 23:59:00 UTC or 2026-11-30 23:59:00 Europe/Berlin."
            ) from None
    return MappingProxyType(times)


def _in_utc(text: str) -> datetime:
    """The time, in UTC. Raises: ValueError, also for a zone that is not known, which nbgrader would take for UTC."""
    text = _OFFSET.sub("", text)  # nbgrader reads an offset only without a space before it
    *_, zone = text.split()
    if zone[0].isalpha() and gettz(zone) is None:
        raise ValueError(f"{zone!r} is not a time zone")
    return parse_utc(text)


def note_collected(root: Path, assignment: str, student: str, submitted: datetime, source: str) -> None:
    """Add a row to the collectors' record; `submitted` is in UTC. Raises: ValueError if the record cannot be read."""
    read_collected(root)  # add nothing to a table that is not readable
    cells = (assignment, student, f"{submitted.isoformat(' ')} UTC", str(neutral(source)))  # a student's own file name
    add_row(root / COLLECTED, dict(zip(_COLUMNS, cells, strict=True)))
