"""The animation of a run's messages as HTML: data and our own script; it needs no kernel and no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from worldsize import units
from worldsize.draw._message_steps import Round
from worldsize.draw._rank_circle import Circle

_RADIUS, _WIDTH, _HEIGHT = 150, 640, 370  # pixels


def animated(still: str, ranks: Sequence[int], steps: Sequence[Round], total: int, title: str) -> str:
    """Make HTML that shows the picture `still`, or instead the animation on a page that may run scripts.

    Untrusted pages drop scripts and buttons, so the script creates everything but the picture. It finds its element by
    class, so that any number of animations can share a page.
    """
    data = escape(json.dumps(_data(ranks, steps, total, title), separators=(",", ":")), quote=True)
    folder = files("worldsize.draw")
    style, script = (folder.joinpath(f"message_player.{kind}").read_text("utf-8") for kind in ("css", "js"))
    box = f'<div class="worldsize-messages" data-run="{data}">{still}</div>'
    return f"<style>{style}</style>{box}<script>{script}</script>"


def _data(ranks: Sequence[int], steps: Sequence[Round], total: int, title: str) -> dict[str, object]:
    """Return nodes and curves in pixels, and for each step its text and when each curve is animated, in seconds."""
    circle = Circle(len(ranks), _RADIUS, _WIDTH / 2, _HEIGHT / 2)
    curves: dict[tuple[float, ...], int] = {}
    shown = []
    for number, step in enumerate(steps, start=1):
        moves = []
        for transfer, curve in circle.curves(ranks, step.transfers):
            at = curves.setdefault(tuple(round(x, 1) for x in curve), len(curves))
            size = units.format_bytes(transfer.size_bytes)
            moves.append([at, transfer.start_s, transfer.end_s, size, transfer.is_message])
        when = f"{units.format_time_s(step.start_s)} to {units.format_time_s(step.end_s)}"
        shown.append(
            {
                "says": f"Step {number} of {total}, {when}: {step.describe()}.",
                "calls": [*step.names(), step.amount()] if step.names() else [],
                "start": step.start_s,
                "end": step.end_s,
                "moves": moves,
            }
        )
    return {
        "title": title,
        "width": _WIDTH,
        "height": _HEIGHT,
        "node": round(circle.node, 1),
        "hub": circle.hub,
        "nodes": [[round(x, 1) for x in circle.place(number)] for number in range(len(ranks))],
        "names": [[round(x, 1), round(y, 1), name] for (x, y), name in circle.names(ranks).items()],
        "curves": list(curves),
        "steps": shown,
    }
