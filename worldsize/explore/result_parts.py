"""A function's result as parts that can be shown: pictures, tables, numbers, text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import Any

from matplotlib.figure import Figure

from worldsize import draw
from worldsize.draw._table import cell, head, plain
from worldsize.explore.figure_image import FigureImage
from worldsize.timeline import Timeline

_MOST_ROWS = 50


@dataclass(frozen=True)
class TextPart:
    """Text, a number or a table, in HTML and as plain text."""

    html: str
    text: str

    def bundle(self) -> dict[str, str]:
        """The MIME bundle that a notebook shows."""
        return {"text/html": self.html, "text/plain": self.text}


Part = TextPart | FigureImage


def parts_of(value: Any, name: str) -> list[Part]:
    """Split a value into visible parts; a number has the unit that `name` ends in."""
    if value is None:
        return []
    if isinstance(value, Timeline):
        return parts_of(draw.timeline(value), name)
    if isinstance(value, Figure):
        return [FigureImage(value, _alt(value, name))]
    value = plain(value)
    if isinstance(value, str):
        return [TextPart("".join(f"<p>{escape(line)}</p>" for line in value.splitlines()), value)]
    if isinstance(value, Real):
        text = cell(name, value)
        return [TextPart(f'<p class="number">{escape(text)}</p>', f"{name} = {text}")]
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return _parts_of_mapping(value, name)
    if isinstance(value, list | tuple):
        return _parts_of_sequence(value, name)
    return [_part_of_object(value)]


def part_of_bundle(bundle: Mapping[str, Any]) -> TextPart:
    """Turn displayed output into a part: as HTML if there is any, otherwise as text."""
    text = str(bundle.get("text/plain", ""))
    if "text/html" not in bundle and "image/png" in bundle:
        image = f'<img alt="{escape(text)}" src="data:image/png;base64,{bundle["image/png"]}">'
        return TextPart(image, text)
    return TextPart(str(bundle.get("text/html", f"<pre>{escape(text)}</pre>")), text)


def _parts_of_mapping(values: Mapping[Any, Any], name: str) -> list[Part]:
    shown = {str(key): plain(value) for key, value in values.items()}
    rows = [
        (head(key), cell(_unit_name(key, name), value)) for key, value in shown.items() if isinstance(value, Real | str)
    ]
    others = [
        part for key, value in shown.items() if not isinstance(value, Real | str) for part in parts_of(value, key)
    ]
    if not rows:
        return others
    # numbers first: a tall picture would push them off the screen
    return [TextPart(_html(["", ""], rows), ", ".join(f"{key} {text}" for key, text in rows)), *others]


def _parts_of_sequence(values: Sequence[Any], name: str) -> list[Part]:
    shown = [plain(value) for value in values]
    if shown and isinstance(values, list) and all(isinstance(row, Mapping | list | tuple) for row in shown):
        return [_rows(shown, name)]
    if shown and all(isinstance(value, Real) for value in shown):
        text = ", ".join(cell(name, value) for value in shown[:_MOST_ROWS])
        return [TextPart(f"<p>{escape(text)}</p>", f"{name} = {text}")]
    return [part for value in shown for part in parts_of(value, name)]


def _rows(rows: Sequence[Any], name: str) -> TextPart:
    keys = list(dict.fromkeys(str(key) for row in rows if isinstance(row, Mapping) for key in row))
    texts = []
    for row in rows[:_MOST_ROWS]:
        if isinstance(row, Mapping):
            cells = {str(key): cell(_unit_name(str(key), name), plain(value)) for key, value in row.items()}
            texts.append([cells.get(key, "") for key in keys])
        else:
            texts.append([cell(name, plain(value)) for value in row])
    heads = [head(key) for key in keys]
    left = f"... and {len(rows) - _MOST_ROWS} more rows" if len(rows) > _MOST_ROWS else ""
    text = "\n".join("  ".join(row) for row in ([heads] if heads else []) + texts)
    return TextPart(_html(heads, texts, left), f"{text}\n{left}".strip())


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """A table, whose rows may differ in length, as HTML."""
    width = max(map(len, [heads, *rows]))
    columns, *cells = ((*row, *[""] * (width - len(row))) for row in [heads, *rows])
    return draw.Table(columns, tuple(cells), (False,) * width, note=note, has_row_heads=True)._repr_html_()


def _unit_name(key: str, name: str) -> str:
    """Return the name whose ending gives the unit: the entry's, otherwise the function's."""
    return key if "_" in key or name == key else name


def _alt(figure: Figure, name: str) -> str:
    titles = [axes.get_title(loc=loc) for axes in figure.axes for loc in ("left", "center", "right")]
    title = ", ".join(filter(None, [figure.get_suptitle(), *titles]))
    return getattr(figure, "alt", "") or title or f"A figure that {name} drew."


def _part_of_object(value: Any) -> TextPart:
    if hasattr(value, "_repr_mimebundle_"):
        return part_of_bundle(value._repr_mimebundle_() or {"text/plain": repr(value)})
    if hasattr(value, "_repr_html_"):
        return TextPart(value._repr_html_() or "", repr(value))
    return TextPart(f"<pre>{escape(repr(value))}</pre>", repr(value))
