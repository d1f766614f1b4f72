"""Which weights and gradients differ between the ranks of an audited run, and from which step on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from worldsize.audit.report import Audit
from worldsize.audit.rules.evidence import ROUNDING
from worldsize.draw.picture import Picture, finish
from worldsize.palette import INK, ORANGE

_WIDTH_IN, _ROW_IN, _AROUND_IN = 9.0, 0.26, 1.0
_MOST_ROWS, _MOST_STEPS = 24, 16
_EQUAL = "="
OfNames = Mapping[str, Mapping[int, float]]  # name -> step -> relative difference between ranks


def differences(audit: Audit, title: str = "Differences between ranks") -> Picture:
    """Draw a cell for each tensor and step: "=" where all ranks agree to within rounding, else the relative difference.

    Weights are compared at the start of each step and at the end, gradients when the optimizer gets them. The last
    steps are shown, and the tensors that differ most.

    Raises:
        ValueError: no two ranks hold a tensor of one name, so nothing was compared.
    """
    steps = sorted({step for of_names in audit.differences.values() for of in of_names.values() for step in of})
    steps = steps[-_MOST_STEPS:]
    shown = {kind: _most(of_names, steps) for kind, of_names in audit.differences.items() if of_names}
    if not shown:
        raise ValueError("Nothing to draw: no two ranks of this run hold a weight of the same name.")
    heights = [_AROUND_IN + _ROW_IN * len(of_names) for of_names in shown.values()]
    picture = Picture(_WIDTH_IN, sum(heights))
    panels = picture.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (kind, of_names) in zip(panels, shown.items(), strict=True):
        _draw(panel, of_names, steps, audit.num_steps)
        finish(panel, f"{title}: {kind}", frame=())
    panels[-1].set_xlabel("step")
    picture.alt = f"{title}. " + " ".join(_said(kind, audit.differences[kind]) for kind in shown)
    return picture


def _most(of_names: OfNames, steps: Sequence[int]) -> OfNames:
    """The tensors that differ most in these steps, in the model's order."""
    kept = {name: {step: of[step] for step in steps if step in of} for name, of in of_names.items()}
    by_size = sorted(kept, key=lambda name: -max(kept[name].values(), default=0.0))[:_MOST_ROWS]
    return {name: of for name, of in kept.items() if name in by_size}


def _draw(panel: Axes, of_names: OfNames, steps: Sequence[int], num_steps: int) -> None:
    for row, of in enumerate(of_names.values()):
        for step, difference in of.items():
            column, is_equal = steps.index(step), difference <= ROUNDING
            text = _EQUAL if is_equal else f"{difference:.1g}"
            panel.text(column, row, text, ha="center", va="center", color=INK, fontsize=7.5)
            if not is_equal:
                panel.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=ORANGE, alpha=_strength(difference)))
    panel.set(xlim=(-0.5, len(steps) - 0.5), ylim=(len(of_names) - 0.5, -0.5))
    panel.set_xticks(range(len(steps)), ["end" if step > num_steps else str(step) for step in steps], fontsize=8)
    panel.set_yticks(range(len(of_names)), [*of_names], fontsize=8)
    panel.tick_params(length=0)


def _strength(difference: float) -> float:
    """How strongly a cell is coloured: faintly just above rounding, fully where two tensors have nothing in common."""
    return 0.15 + 0.85 * min(math.log(difference / ROUNDING) / -math.log(ROUNDING), 1.0)


def _said(kind: str, of_names: OfNames) -> str:
    first = {
        name: min((step for step, of in by.items() if of > ROUNDING), default=None) for name, by in of_names.items()
    }
    apart = [f"{name} from step {step}" for name, step in first.items() if step is not None]
    if not apart:
        return f"All {len(of_names)} {kind} are equal on all ranks."
    more = f" and {len(apart) - 6} more" if len(apart) > 6 else ""
    return f"Of {len(of_names)} {kind}, these differ between ranks: {', '.join(apart[:6])}{more}."
