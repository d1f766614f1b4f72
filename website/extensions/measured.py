"""What was recorded on GPUs, beside what a lesson measured on processor cores; or that nothing was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from autograder.bench.recorded import FOLDER, Record, read_all
from worldsize import draw

NOT_HERE = (
    "What is measured here was measured on processor cores; what is said of GPUs is emulated, computed or quoted."
)


def setup(app: Sphinx) -> dict[str, Any]:
    """Add what was recorded to every lesson."""
    app.add_config_value("records_sha256", "", "env")
    app.connect("config-inited", _note_records)
    app.connect("doctree-read", _add)
    return {"parallel_read_safe": True}


def page(root: Path) -> str:
    """The page on all records, in Markdown; empty if there are none."""
    if not (records := read_all(root)):
        return ""
    parts = [f"## {record.where}\n\n{_table_of(record)}" for record in records]
    head = "`make gpu` runs every path that uses GPUs, and records what it gives with a description of the machine."
    return "\n\n".join(["# Measured on GPUs", head, *parts, ""])


def _table_of(record: Record) -> str:
    """The parts of a record in a table, and its all-reduces in another."""
    about = f"{record.num_ranks} ranks on {record.backend}, torch {record.machine.torch}, CUDA {record.machine.cuda}."
    rows = [(one.name, one.outcome, one.took_s, one.why.strip().rpartition("\n")[2]) for one in record.parts]
    shown = [draw.table(rows, columns=("part", "outcome", "took_s", "why"))]
    if (launcher := record.part("launcher")) and launcher.data:
        shown.append(draw.table(launcher.data["rows"], title="All-reduces, measured"))
    return "\n\n".join([about, *(f'<div class="table-wrapper">{table._repr_html_()}</div>' for table in shown)])


def _note_records(app: Sphinx, config: Config) -> None:
    """Have every lesson read again when a record changes."""
    seen = hashlib.sha256()
    for path in sorted(Path(config.repository_folder, FOLDER).glob("*.json")):
        seen.update(path.read_bytes())
    config.records_sha256 = seen.hexdigest()


def _add(app: Sphinx, doctree: nodes.document) -> None:
    folder, _, name = app.env.docname.rpartition("/")
    if folder != "weeks":
        return
    records, week = read_all(Path(app.config.repository_folder)), name.partition("_")[0]
    for container in [*doctree.findall(nodes.container)]:
        for table in [*_tables(records, week, container["ids"])]:
            container.append(nodes.raw("", table, format="html"))
    (top, *_) = doctree.findall(nodes.section)
    place = 1 + next(number for number, node in enumerate(top) if not isinstance(node, nodes.title))  # below its table
    top.insert(place, nodes.paragraph("", _said(records, week), classes=["recorded"]))


def _tables(records: Sequence[Record], week: str, cells: Sequence[str]) -> Iterator[str]:
    """The HTML of the recorded tables of a cell."""
    for record in records:
        for table in found.tables if (found := record.part(week)) else []:
            if table.cell in cells:
                shown = draw.table(table.rows, title=f"{table.title}: {record.where}", columns=table.columns)
                yield f'<div class="cell_output recorded">{shown._repr_html_()}</div>'


def _said(records: Sequence[Record], week: str) -> str:
    """Where this week was run on GPUs, in words."""
    where = [record.where for record in records if (part := record.part(week)) and part.outcome == "passed"]
    return f"Also run on {'; '.join(where)}: those tables stand below the ones measured here." if where else NOT_HERE
