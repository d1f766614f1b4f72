"""The live side of an explorer: widgets, and a result that is redrawn whenever a widget changes."""

from __future__ import annotations

import asyncio
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import ipywidgets as widgets

from worldsize.controls import Control
from worldsize.draw.picture import in_dark_theme
from worldsize.explore.captured_call import CallResult
from worldsize.explore.figure_image import FigureImage, Places
from worldsize.explore.result_parts import Part, TextPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_IDLE_S = 0.4  # after the last move, before the picture is drawn sharp
_DARK = in_dark_theme(".worldsize-explorer img")
_STYLE = """\
.worldsize-explorer { color: var(--jp-content-font-color1); font-size: var(--jp-content-font-size1); overflow: hidden }
.worldsize-explorer .widget-readout { min-width: 6.5em; max-width: none; pointer-events: none; text-align: left }
.worldsize-explorer .slider-container { margin: 0 14px }
.worldsize-explorer [role="slider"]:focus-visible { outline: 3px solid #E69F00; outline-offset: 2px }
.worldsize-explorer img { max-width: 100%; display: block }
.worldsize-explorer p { margin: 0.3em 0; line-height: 1.4 }
.worldsize-explorer .number { font-size: 1.7em; font-weight: 600 }
.worldsize-explorer table { border-collapse: collapse; margin: 0.4em 0; line-height: 1.5 }
.worldsize-explorer th { text-align: left; font-weight: 600; padding: 0.1em 1.2em 0.1em 0 }
.worldsize-explorer td { text-align: right; padding: 0.1em 1.2em 0.1em 0; font-variant-numeric: tabular-nums }
.worldsize-explorer tr { border-bottom: 1px solid var(--jp-border-color2) }
.worldsize-explorer pre { max-height: 10em; overflow: auto; color: inherit; margin: 0.3em 0 }
.worldsize-explorer .error { border-left: 4px solid #D55E00; padding: 0.1em 0.8em; margin: 0.4em 0 }
.worldsize-explorer [role="status"] { position: absolute; clip-path: inset(50%); width: 1px; height: 1px }
.worldsize-explorer .last { opacity: 0.3 }
"""


class Explored(Protocol):
    """The part of an explorer that a panel uses."""

    @property
    def controls(self) -> Sequence[Control]: ...

    def call(self, chosen: Mapping[str, Any]) -> CallResult: ...

    def parts(self, outcome: CallResult) -> list[Part]: ...


class Panel:
    """The widgets of one explorer.

    While the kernel draws, a front end holds back changes and then sends only the newest value: nothing queues behind
    a dragged slider, and no thread is needed.
    """

    def __init__(self, explored: Explored) -> None:
        self._explored = explored
        self.controls = {control.name: _widget(control, explored.controls) for control in explored.controls}
        for control in self.controls.values():
            control.observe(self.redraw, "value")
        self.shown, self.status = widgets.HTML(), widgets.HTML()
        wrap = widgets.Layout(flex_flow="row wrap")
        self.box = widgets.VBox(
            [
                widgets.HTML(f"<style>{_STYLE}{_DARK}</style>"),
                widgets.Box([*self.controls.values()], layout=wrap),
                self.shown,
                self.status,
            ]
        )
        self.box.add_class("worldsize-explorer")
        self.parts: list[Part] = []
        self._last_html = ""
        self._places: Places = {}
        self._sharpening: asyncio.TimerHandle | None = None
        self.redraw()

    def redraw(self, _change: Any = None) -> None:
        """Call the function with the chosen values, and show what it returned or why it failed."""
        if self._sharpening:
            self._sharpening.cancel()
        outcome = self._explored.call({name: control.value for name, control in self.controls.items()})
        error, place = outcome.error, outcome.place
        if not error:
            try:
                self.parts = self._explored.parts(outcome)
                self._show()
            except Exception as raised:  # the result cannot be drawn
                error, place = str(raised) or type(raised).__name__, ""
        if error:
            message = _error_message(error, place)
            self.parts = [message]
            last = f'<div class="last" aria-hidden="true">{self._last_html}</div>' if self._last_html else ""
            self.shown.value = message.html + last
        self.status.value = f'<div role="status">{escape(self._spoken())}</div>'
        if any(isinstance(part, FigureImage) for part in self.parts):
            self._sharpen_when_idle()

    def _spoken(self) -> str:
        """Return the text for a screen reader after a move: it reads a slider's position, not the value next to it."""
        set_to = [
            f"{control.name} = {control.text(self.controls[control.name].value)}" for control in self._explored.controls
        ]
        return f"{', '.join(set_to)}: {' '.join(part.text.rstrip('.') + '.' for part in self.parts)}"

    def _show(self, is_sharp: bool = False) -> None:
        def image(part: FigureImage) -> str:
            return part.sharp(self._places) if is_sharp else part.quick(self._places)

        self._last_html = "".join(
            part.html(image(part)) if isinstance(part, FigureImage) else part.html for part in self.parts
        )
        self.shown.value = self._last_html

    def _sharpen_when_idle(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # outside a kernel nobody sees it
        self._sharpening = loop.call_later(_IDLE_S, self._show, True)


def _widget(control: Control, controls: Sequence[Control]) -> Any:
    if control.kind == "box":
        return widgets.Checkbox(description=control.name, value=control.value, indent=False)
    longest = max(len(control.name) for control in controls)
    style = {"description_width": f"{0.6 * longest + 0.5:.1f}em"}
    layout = widgets.Layout(width=f"{23 + 0.6 * longest:.0f}em", max_width="100%")
    make = widgets.SelectionSlider if control.kind == "slider" else widgets.Dropdown
    return make(description=control.name, options=control.options, index=control.start, style=style, layout=layout)


def _error_message(error: str, place: str) -> TextPart:
    code = f"<p><code>{escape(place)}</code></p>" if place else ""
    return TextPart(f'<div class="error"><p><b>{escape(error)}</b></p>{code}</div>', f"{error} {place}".rstrip())
