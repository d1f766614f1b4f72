"""A figure as an image: quick while a slider moves, sharp when it rests."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.transforms import Bbox
from PIL import Image

SCREEN_DPI, SHARP_DPI = 96, 168
Places = dict[tuple[object, ...], list[Bbox]]  # kind of figure -> where its panels are


@dataclass(frozen=True)
class FigureImage:
    """A figure, and its description in words."""

    figure: Figure
    text: str

    def sharp(self, places: Places | None = None) -> str:
        """A PNG image in base64 at more than a screen's resolution; `places` records where the figure's panels are."""
        image = self._image(SHARP_DPI)
        if places is not None:
            places[self._kind] = [axes.get_position() for axes in self.figure.axes]
        return image

    def quick(self, places: Places) -> str:
        """A PNG image in base64 at the screen's resolution, with panels where the last sharp one had them.

        Laying a figure out takes longer than drawing it, and nothing should jump while a slider moves.
        """
        known, engine = places.get(self._kind), self.figure.get_layout_engine()
        if engine is None or isinstance(engine, PlaceHolderLayoutEngine):  # the drawing code has positioned everything
            return self._image(SCREEN_DPI)
        if known is None:
            return self.sharp(places)
        self.figure.set_layout_engine("none")
        for axes, box in zip(self.figure.axes, known, strict=True):
            axes.set_position(box)
        image = self._image(SCREEN_DPI)
        self.figure.set_layout_engine(engine)
        for axes in self.figure.axes:
            axes.set_in_layout(True)  # set_position takes the axes out of the layout
        return image

    def html(self, image: str) -> str:
        """An `<img>` as wide as the figure, with its description as alt text."""
        width, height = (round(inches * SCREEN_DPI) for inches in self.figure.get_size_inches())
        style = f"width: {width}px; aspect-ratio: {width} / {height}"  # keeps the space while the next image is decoded
        source = f"data:image/png;base64,{image}"
        return f'<img decoding="sync" style="{style}" alt="{escape(self.text)}" src="{source}">'

    def bundle(self) -> dict[str, str]:
        """The MIME bundle that a notebook shows."""
        image = self.sharp()
        return {"image/png": image, "text/html": self.html(image), "text/plain": self.text}

    @property
    def _kind(self) -> tuple[object, ...]:
        return (*self.figure.get_size_inches(), len(self.figure.axes))

    def _image(self, dpi: float) -> str:
        self.figure.dpi = dpi
        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()  # once, where savefig draws twice
        file = io.BytesIO()
        Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(file, "PNG", compress_level=1)
        return base64.b64encode(file.getvalue()).decode("ascii")
