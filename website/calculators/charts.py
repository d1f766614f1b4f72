"""Pictures of calculators, as specifications of Vega-Lite, in the colours of all pictures of the course."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worldsize.palette import BLUE, GREEN, GREY, IDLE, INK, ORANGE, PART_STYLES, PURPLE, SKY, VERMILLION

_LINES = (SKY, ORANGE, GREEN, PURPLE, BLUE)
# as in `worldsize.draw`: of kinds of work on a timeline, and of what memory holds
KINDS = {"forward": SKY, "backward": GREEN, "communication": VERMILLION}
_PARTS = [colour for colour, _ in PART_STYLES]
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
# as many names beside each other as have room
_LEGEND = {"orient": "top", "columns": {"expr": "max(1, floor(width / 120))"}}
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])


def bars(
    rows: Iterable[tuple[str, str, float]], axis: str, limit: float, limit_name: str, parts: Sequence[str]
) -> dict[str, Any]:
    """Stacked bars from (bar, part, amount), with a line at a limit."""
    values = [{"bar": bar, "part": part, "amount": amount} for bar, part, amount in rows]
    order = list(dict.fromkeys(value["bar"] for value in values))
    across = {"type": "quantitative", "title": axis, "axis": {"tickCount": 6, "labelOverlap": True}}
    colour = {"field": "part", "sort": parts, "scale": {"domain": parts, "range": _PARTS[: len(parts)]}, "title": None}
    return _chart(
        [
            {
                "data": {"values": values},
                "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.5},
                "encoding": {
                    "y": {"field": "bar", "sort": order, "title": None},
                    "x": {**across, "field": "amount", "stack": "zero"},
                    "color": {**colour, "legend": _LEGEND},
                    "order": {"field": "place", "type": "quantitative"},
                    "tooltip": [
                        {"field": "part", "title": "what"},
                        {"field": "amount", "type": "quantitative", "format": ".3s", "title": axis},
                    ],
                },
                "transform": [{"calculate": f"indexof({list(parts)!r}, datum.part)", "as": "place"}],
            },
            {
                "data": {"values": [{"limit": limit, "name": limit_name}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 2},
                "encoding": {
                    "x": {**across, "field": "limit"},
                    "tooltip": {"field": "name", "title": "limit"},
                },
            },
        ],
        height=34 * len(order),
    )


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x: str,
    y: str,
    marked: Sequence[tuple[float, float]] = (),
    log_x: bool = True,
    log_y: bool = True,
    named: Mapping[str, tuple[float, float]] | None = None,
    rules: Sequence[tuple[str, float]] = (),
    ticks: str = "~s",
    wide: str = "",
) -> dict[str, Any]:
    """Lines by name, points where the reader is, other points with their names below them, and named vertical rules.

    The first line is `wide` where another one may coincide with it.
    """
    values = [{"x": at, "y": value, "line": name} for name, points in series.items() for at, value in points]
    names = list(series)
    across = {"field": "x", "type": "quantitative", "title": x, "scale": {"type": "log" if log_x else "linear"}}
    up = {"field": "y", "type": "quantitative", "title": y, "scale": {"type": "log" if log_y else "linear"}}
    axis = {"format": ticks, "labelOverlap": True, "tickCount": 8}
    scale = {"domain": names, "range": _LINES[: len(names)]}
    legend = _LEGEND if len(names) > 1 else None
    return _chart(
        [
            {
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 2.5, "clip": True},
                "encoding": {
                    "x": {**across, "axis": axis},
                    "y": {**up, "axis": axis},
                    "color": {"field": "line", "scale": scale, "title": None, "legend": legend},
                    "strokeDash": {
                        "field": "line",
                        "scale": {"domain": names, "range": _DASHES[: len(names)]},
                        "title": None,
                        "legend": legend,
                    },
                    "tooltip": [
                        {"field": "line", "title": "what"},
                        {"field": "x", "type": "quantitative", "format": ".3s", "title": x},
                        {"field": "y", "type": "quantitative", "format": ".3s", "title": y},
                    ],
                },
            },
            *_band([value for value in values if value["line"] == wide], across, up),
            {
                "data": {"values": [{"x": at, "y": value} for at, value in marked]},
                "mark": {"type": "point", "filled": True, "size": 110, "color": VERMILLION, "opacity": 1},
                "encoding": {"x": across, "y": up},
            },
            *_named(named or {}, across, up),
            *_rules(rules, across),
        ],
        height=260,
    )


def spans(rows: Iterable[tuple[str, str, str, float, float]], axis: str, colours: Mapping[str, str]) -> dict[str, Any]:
    """Lanes over time from (lane, kind, name, start, end), on grey where they are idle, in the colour of each kind."""
    values = [
        {"lane": lane, "kind": kind, "name": name, "start": start, "end": end} for lane, kind, name, start, end in rows
    ]
    lanes, end = list(dict.fromkeys(value["lane"] for value in values)), max(value["end"] for value in values)
    row = {"y": {"field": "lane", "sort": lanes, "title": None}, "x2": {"field": "end"}}
    across = {"field": "start", "type": "quantitative", "title": axis, "scale": {"domain": [0, end], "nice": False}}
    scale = {"domain": list(colours), "range": list(colours.values())}
    stroke = 0.4 if len(values) <= 400 else 0  # white lines would hide thin spans
    return _chart(
        [
            {
                "data": {"values": [{"lane": lane, "start": 0, "end": end} for lane in lanes]},
                "mark": {"type": "bar", "color": IDLE},
                "encoding": {**row, "x": across},
            },
            {
                "data": {"values": values},
                "mark": {"type": "bar", "stroke": "white", "strokeWidth": stroke},
                "encoding": {
                    **row,
                    "x": across,
                    "color": {"field": "kind", "scale": scale, "title": None, "legend": _LEGEND},
                    "tooltip": [
                        {"field": "lane", "title": "where"},
                        {"field": "name", "title": "what"},
                        {"field": "start", "type": "quantitative", "format": ".4~g", "title": f"start, {axis}"},
                        {"field": "end", "type": "quantitative", "format": ".4~g", "title": f"end, {axis}"},
                    ],
                },
            },
        ],
        height=max(90, 26 * len(lanes)),
    )


def _band(values: Sequence[Mapping[str, Any]], across: Mapping[str, Any], up: Mapping[str, Any]) -> list[Any]:
    """A layer with the first line of all, pale and wide."""
    mark = {"type": "line", "strokeWidth": 10, "opacity": 0.4, "color": _LINES[0], "clip": True}
    return [{"data": {"values": values}, "mark": mark, "encoding": {"x": across, "y": up}}] if values else []


def _named(points: Mapping[str, tuple[float, float]], across: Mapping[str, Any], up: Mapping[str, Any]) -> list[Any]:
    """Layers of open points, and of the names below them."""
    if not points:
        return []
    data = {"values": [{"x": at, "y": value, "name": name} for name, (at, value) in points.items()]}
    place = {"x": across, "y": up}
    text = {"type": "text", "dy": 14, "fontSize": 11, "color": GREY}
    return [
        {"data": data, "mark": {"type": "point", "size": 60, "color": GREY, "strokeWidth": 2}, "encoding": place},
        {"data": data, "mark": text, "encoding": {**place, "text": {"field": "name"}}},
    ]


def _rules(rules: Sequence[tuple[str, float]], across: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A dashed line for each rule, with its name at the bottom."""
    if not rules:
        return []
    data = {"values": [{"name": name, "x": at} for name, at in rules]}
    name = {"type": "text", "align": "left", "baseline": "bottom", "dx": 5, "dy": -4, "fontSize": 12, "color": INK}
    return [
        {
            "data": data,
            "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5, "color": INK},
            "encoding": {"x": across},
        },
        {
            "data": data,
            "mark": name,
            "encoding": {"x": across, "y": {"value": "height"}, "text": {"field": "name"}},
        },
    ]


def _chart(layer: list[dict[str, Any]], height: int) -> dict[str, Any]:
    return {"$schema": _SCHEMA, "width": "container", "height": height, "layer": layer}
