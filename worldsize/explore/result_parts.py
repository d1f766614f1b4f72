"""A function's result as parts that can be shown: pictures, tables, numbers, text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import Any

from matplotlib.figure import Figure

from worldsize import draw, units
from worldsize.draw._table import head
from worldsize.explore.figure_image import FigureImage
from worldsize.timeline import Timeline

_MOST_ROWS = 50


@dataclass(frozen=True)
class TextPart:
    """Text, a number or a table, in HTML and as plain text."""

    html: str
    text: str

    def bundle(self) -> dict[str, str]:
        """What a notebook shows of it."""
        return {"text/html": self.html, "text/plain": self.text}


Part = TextPart | FigureImage


def parts_of(value: Any, name: str) -> list[Part]:
    """The visible parts of a value; a number has the unit that `name` ends in."""
    if value is None:
        return []
    if isinstance(value, Timeline):
        return parts_of(draw.timeline(value), name)
    if isinstance(value, Figure):
        return [FigureImage(value, _alt(value, name))]
    value = _plain(value)
    if isinstance(value, str):
        return [TextPart("".join(f"<p>{escape(line)}</p>" for line in value.splitlines()), value)]
    if isinstance(value, Real):
        text = _cell(name, value)
        return [TextPart(f'<p class="number">{escape(text)}</p>', f"{name} = {text}")]
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return _parts_of_mapping(value, name)
    if isinstance(value, list | tuple):
        return _parts_of_sequence(value, name)
    return [_part_of_object(value)]


def part_of_bundle(bundle: Mapping[str, Any]) -> TextPart:
    """What was displayed, as HTML if there is any, otherwise as text."""
    text = str(bundle.get("text/plain", ""))
    if "text/html" not in bundle and "image/png" in bundle:
        image = f'<img alt="{escape(text)}" src="data:image/png;base64,{bundle["image/png"]}">'
        return TextPart(image, text)
    return TextPart(str(bundle.get("text/html", f"<pre>{escape(text)}</pre>")), text)


def _parts_of_mapping(values: Mapping[Any, Any], name: str) -> list[Part]:
    plain = {str(key): _plain(value) for key, value in values.items()}
    rows = [
        [head(key), _cell(_unit_name(key, name), value)]
        for key, value in plain.items()
        if isinstance(value, Real | str)
    ]
    others = [
        part for key, value in plain.items() if not isinstance(value, Real | str) for part in parts_of(value, key)
    ]
    # numbers first: a tall picture would push them off the screen
    return [*([TextPart(_table([], rows), ", ".join(f"{key} {text}" for key, text in rows))] if rows else []), *others]


def _parts_of_sequence(values: Sequence[Any], name: str) -> list[Part]:
    plain = [_plain(value) for value in values]
    if plain and isinstance(values, list) and all(isinstance(row, Mapping | list | tuple) for row in plain):
        return [_rows(plain, name)]
    if plain and all(isinstance(value, Real) for value in plain):
        text = ", ".join(_cell(name, value) for value in plain[:_MOST_ROWS])
        return [TextPart(f"<p>{escape(text)}</p>", f"{name} = {text}")]
    return [part for value in plain for part in parts_of(value, name)]


def _rows(rows: Sequence[Any], name: str) -> TextPart:
    keys = list(dict.fromkeys(str(key) for row in rows if isinstance(row, Mapping) for key in row))
    texts = []
    for row in rows[:_MOST_ROWS]:
        if isinstance(row, Mapping):
            cells = {str(key): _cell(_unit_name(str(key), name), _plain(value)) for key, value in row.items()}
            texts.append([cells.get(key, "") for key in keys])
        else:
            texts.append([_cell(name, _plain(value)) for value in row])
    heads = [head(key) for key in keys]
    left = f"... and {len(rows) - _MOST_ROWS} more rows" if len(rows) > _MOST_ROWS else ""
    text = "\n".join("  ".join(row) for row in ([heads] if heads else []) + texts)
    return TextPart(_table(heads, texts) + (f"<p>{left}</p>" if left else ""), f"{text}\n{left}".strip())


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    columns = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(map(_entry, range(len(row)), row))}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{columns}</tr></thead>' if columns else ''}<tbody>{body}</tbody></table>"


def _entry(column: int, text: str) -> str:
    return f"<td>{escape(text)}</td>" if column else f'<th scope="row">{escape(text)}</th>'


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return units.format_as(name, value if isinstance(value, int) else float(value)) if _is_real(value) else str(value)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _unit_name(key: str, name: str) -> str:
    """The name whose ending gives the unit: the entry's own, otherwise the function's."""
    return key if "_" in key or name == key else name


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's, arrays as lists; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else value


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
