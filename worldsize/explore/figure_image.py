"""A figure as an image: at once while a slider moves, sharp when it rests."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

SCREEN_DPI, SHARP_DPI = 96, 168
Places = dict[tuple[object, ...], list[Bbox]]  # of the panels of figures of one kind


@dataclass(frozen=True)
class FigureImage:
    """A figure, and what it says in words."""

    figure: Figure
    text: str

    def sharp(self, places: Places | None = None) -> str:
        """A PNG image in base64 with more dots than a screen needs; notes where the figure's panels are."""
        image = self._image(SHARP_DPI)
        if places is not None:
            places[self._kind] = [axes.get_position() for axes in self.figure.axes]
        return image

    def quick(self, places: Places) -> str:
        """A PNG image in base64 at the screen's resolution, its panels where those of the last sharp one were.

        Laying a figure out takes longer than drawing it, and nothing should jump while a slider moves.
        """
        known, engine = places.get(self._kind), self.figure.get_layout_engine()
        if engine is None:  # the drawing code placed everything, which is quick
            return self._image(SCREEN_DPI)
        if known is None:
            return self.sharp(places)
        self.figure.set_layout_engine("none")
        for axes, place in zip(self.figure.axes, known, strict=True):
            axes.set_position(place)
        image = self._image(SCREEN_DPI)
        self.figure.set_layout_engine(engine)
        for axes in self.figure.axes:
            axes.set_in_layout(True)  # which setting a place ends
        return image

    def html(self, image: str) -> str:
        """An `<img>` as wide as the figure, with what it says in words."""
        width, height = (round(inches * SCREEN_DPI) for inches in self.figure.get_size_inches())
        style = f"width: {width}px; aspect-ratio: {width} / {height}"  # keeps its place while the next one is decoded
        source = f"data:image/png;base64,{image}"
        return f'<img decoding="sync" style="{style}" alt="{escape(self.text)}" src="{source}">'

    def bundle(self) -> dict[str, str]:
        """What a notebook shows of it."""
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
