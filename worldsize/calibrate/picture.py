"""The picture of a calibration: products, passes over memory, and messages beside the fitted link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from worldsize.draw.palette import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION
from worldsize.draw.picture import Picture, finish
from worldsize.units import significant

Measured = Mapping[str, Sequence[Mapping[str, Any]]]

_PRODUCTS = {"addmm": BLUE, "mm": VERMILLION, "bmm": GREEN}
_PASSES = {"copy_": BLUE, "add": VERMILLION, "gelu": GREEN, "tanh": PURPLE}


def picture(title: str, measured: Measured, message_s: Callable[[float], float]) -> Picture:
    """The rates of products and of passes over memory by size, and all-reduces beside those of the fitted link."""
    has_links = bool(measured["links"])
    drawn = Picture(10.5 if has_links else 7.5, 3.4)
    panels = drawn.subplots(1, 3 if has_links else 2)
    said = [_products(panels[0], measured), _passes(panels[1], measured)]
    if has_links:
        said.append(_links(panels[2], measured, message_s))
    drawn.alt = f"{title} {' '.join(said)}"
    return drawn


def _products(axes: Axes, measured: Measured) -> str:
    rates = []
    for name, colour in _PRODUCTS.items():
        rows = [row for row in measured["products"] if row["name"] == name]
        if not rows:
            continue
        here = [row["flops"] / min(row["times_s"]) / 1e9 for row in rows]
        axes.plot([row["flops"] for row in rows], here, "o", markersize=4, alpha=0.7, color=colour, label=name)
        rates += here
    _scaled(axes, "flops of a product", "GFLOP/s", "Products")
    return f"Products reach {significant(min(rates))} to {significant(max(rates))} GFLOP/s, large ones most."


def _passes(axes: Axes, measured: Measured) -> str:
    ends = []
    for name, colour in _PASSES.items():
        rows = [row for row in measured["passes"] if row["name"] == name]
        if not rows:
            continue
        rates = [row["size_bytes"] / min(row["times_s"]) / 1e9 for row in rows]
        axes.plot([row["size_bytes"] for row in rows], rates, "o-", markersize=4, color=colour, label=name)
        ends.append(f"{name} {significant(rates[-1])}")
    _scaled(axes, "bytes moved", "GB/s", "Passes over memory")
    return f"Passes over the largest tensors, in GB/s: {', '.join(ends)}."


def _links(axes: Axes, measured: Measured, message_s: Callable[[float], float]) -> str:
    rows = measured["links"]
    sizes = [row["size_bytes"] for row in rows]
    fitted = [1e3 * message_s(size) for size in sizes]
    axes.plot(sizes, fitted, color=INK, label="fit")
    axes.plot(sizes, [1e3 * min(row["times_s"]) for row in rows], "o", markersize=5, color=ORANGE, label="measured")
    _scaled(axes, "bytes of an all-reduce", "ms", "Messages")
    return f"All-reduces take {significant(fitted[0])} to {significant(fitted[-1])} ms by the fitted link."


def _scaled(axes: Axes, x_label: str, y_label: str, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high / 12), high)  # more than a decade, so that the axis has two labels
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend(frameon=False, fontsize=8)
    finish(axes, title)
