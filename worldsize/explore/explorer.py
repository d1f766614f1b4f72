"""An explorer: live if a person can move a slider, otherwise a picture with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from worldsize.controls import Control, controls_of
from worldsize.draw.picture import in_dark_theme
from worldsize.explore import frames, frontend
from worldsize.explore.captured_call import CallResult, call
from worldsize.explore.figure_image import FigureImage, Places
from worldsize.explore.result_parts import Part, TextPart, part_of_bundle, parts_of
from worldsize.explore.widgets import Panel

# in the file the stills follow the live panel; a front end shows whichever of the two works there
_LIVE, _STILL = ".jp-OutputArea:has(.worldsize-explorer)", ".jp-OutputArea-child:has(.worldsize-still)"
_DEAD = ".jp-OutputArea:has(.worldsize-still):not(:has(.worldsize-explorer))"
# JupyterLab's mark for a widget that it cannot show
_DEAD_PANEL = ".jp-OutputArea-child:has(> .jp-OutputArea-output:not([data-mime-type]))"
_STYLE = f"""<style>
{_LIVE} > {_STILL}, {_DEAD} > {_DEAD_PANEL} {{ display: none }}
.worldsize-still img {{ max-width: 100% }}
{in_dark_theme(".worldsize-still img")}
</style>"""


def explore(function: Callable[..., Any], /, **ranges: Any) -> Explorer:
    """Show the result of `function` below a slider, list or check box for each argument that is given a range.

    A range is `(low, high)`, `(low, high, step)`, or `(low, high, "x2")`, which doubles at each step; a range without a
    step doubles too when its ends are 1000 times apart. A list, or a dict from texts to values, is a list to choose
    from; `True` or `False` is a check box; anything else is passed on as it is. A control starts at the function's
    default. Values and results have the unit that their name ends in: `_s`, `_bytes`, `_flops`, `_fraction`.

    The function may give a number, a dict of numbers, a list of rows, a Timeline, a figure, text, or a tuple of these.

    Raises:
        ValueError: a malformed range, an argument that the function does not have, or one without a value.
    """
    controls, fixed = controls_of(function, ranges)
    return Explorer(function, controls, fixed)


@dataclass(frozen=True)
class Explorer:
    """A function, the controls of its arguments, and the arguments that stay fixed."""

    function: Callable[..., Any]
    controls: list[Control]
    fixed: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The function's name, which may end in a unit."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return name if name.isidentifier() else "the function"

    def call(self, chosen: Mapping[str, Any]) -> CallResult:
        """Call the function with these values."""
        return call(self.function, {**self.fixed, **chosen})

    def parts(self, outcome: CallResult) -> list[Part]:
        """The visible parts of an outcome without an error.

        Raises:
            ValueError: it cannot be drawn; the message says why.
        """
        parts = [*map(part_of_bundle, outcome.displayed), *parts_of(outcome.value, self.name)]
        if outcome.printed:
            parts.append(TextPart(f"<pre>{escape(outcome.printed)}</pre>", outcome.printed))
        return parts or [TextPart(f"<p>{escape(self.name)} gave nothing.</p>", f"{self.name} gave nothing.")]

    def stills(self) -> list[dict[str, str]]:
        """Show the explorer at its first values, without sliders: a MIME bundle for each part, then a sentence.

        Raises:
            RuntimeError: the function fails at its first values, which a reader cannot change here.
        """
        outcome = self.call({control.name: control.value for control in self.controls})
        if outcome.error:
            raise RuntimeError(f"{self.sentence()} {outcome.error} {outcome.place}".rstrip())
        return self._stills_of(self.parts(outcome))

    def sentence(self) -> str:
        """Describe the function, its first values and their ranges."""
        settings = [
            f"{control.name} = {control.text(control.value)} ({control.describe()})" for control in self.controls
        ]
        return f"{self.name} with {', '.join(settings)}." if settings else f"{self.name}."

    def _stills_of(self, parts: list[Part]) -> list[dict[str, str]]:
        sentence = f"{self.sentence()} Run this cell in JupyterLab to change them."
        bundles = [part.bundle() for part in [*parts, TextPart(f"<p>{escape(sentence)}</p>", sentence)]]
        for bundle in bundles:
            bundle["text/html"] = f'{_STYLE}<div class="worldsize-still">{bundle["text/html"]}</div>'
        return bundles

    def framed(self, most: int) -> dict[str, str]:
        """Show the explorer with at most about this many frames, as a MIME bundle for pages without a kernel.

        Raises:
            RuntimeError: the function fails at its first values.
        """
        words = f"{self.sentence()} In JupyterLab the controls have every position, and the numbers come afresh."
        places: Places = {}
        shown = frames.html(self.controls, most, lambda chosen: self._frame(chosen, places), words)
        return {"text/html": shown, "text/plain": "\n".join(bundle["text/plain"] for bundle in self.stills())}

    def _frame(self, chosen: Mapping[str, Any], places: Places) -> str:
        outcome = self.call(chosen)
        if outcome.error:
            return f'<div class="error"><p>{escape(outcome.error)}</p></div>'
        return "".join(
            part.html(part.quick(places)) if isinstance(part, FigureImage) else part.html
            for part in self.parts(outcome)
        )

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if not frontend.is_interactive():
            stills = [self.framed(most)] if (most := frames.most_frames()) else self.stills()
        else:
            panel = Panel(self)
            view = panel.box._repr_mimebundle_() or {}
            # empty text where the view cannot be shown: the stills say it all
            display({**view, "text/html": "", "text/plain": ""}, raw=True)
            stills = self._stills_of(panel.parts)
        for bundle in stills:
            display(bundle, raw=True)
