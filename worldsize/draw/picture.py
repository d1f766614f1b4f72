"""A figure that also describes itself in words, for light and dark themes."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from worldsize.palette import INK

SCREEN_DPI, FILE_DPI = 96, 168
Layout = Literal["constrained"] | None  # None: the drawing code positions everything, which is faster
_CLASS = "worldsize-picture"


def in_dark_theme(selector: str) -> str:
    """Make the CSS rule that adapts images to a dark theme: light and dark are swapped, hues are kept."""
    # JupyterLab and its exports set this attribute when their theme is dark
    return f'body[data-jp-theme-light="false"] {selector} {{ filter: invert(0.93) hue-rotate(180deg) }}'


class Picture(Figure):
    """A matplotlib figure whose `alt` says in words what a reader should see in it."""

    def __init__(self, width: float, height: float, alt: str = "", layout: Layout = "constrained") -> None:
        super().__init__(figsize=(width, height), layout=layout)
        self.alt = alt

    def legend_below(self, *entries: Any, **style: Any) -> None:
        """Put the legend, of all panels or of these handles and labels, in a row below the picture."""
        self.legend(*entries, loc="outside lower center", frameon=False, **style)

    def png(self, dpi: float = FILE_DPI) -> bytes:
        """Draw the picture as the bytes of a PNG file, with this many pixels per inch."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=dpi, metadata={"Software": None}, pil_kwargs={"compress_level": 3})
        return file.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        encoded = base64.b64encode(self.png()).decode("ascii")
        return {"image/png": encoded, "text/html": self._html(encoded), "text/plain": self.alt}

    def _html(self, encoded: str) -> str:
        width = round(self.get_size_inches()[0] * SCREEN_DPI)
        style = f"width: {width}px; max-width: 100%; height: auto; background: white"
        # an image/png cannot carry our alt text, so the same picture is sent as HTML too
        image = f'<img class="{_CLASS}" style="{style}" alt="{escape(self.alt)}" src="data:image/png;base64,{encoded}">'
        return f"<style>{in_dark_theme(f'.{_CLASS}')}</style>{image}"


def finish(axes: Axes, title: str, frame: tuple[str, ...] = ("left", "bottom")) -> None:
    """Give a panel its title and the visible sides of its frame."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in frame)
    axes.tick_params(colors=INK)
