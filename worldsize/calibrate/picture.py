"""The picture of a calibration: matmuls, passes over memory, and messages next to the fitted link."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from worldsize.draw.picture import Picture, finish
from worldsize.palette import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION
from worldsize.units import significant

Measured = Mapping[str, Sequence[Mapping[str, Any]]]

_PRODUCTS = {"addmm": BLUE, "mm": VERMILLION, "bmm": GREEN}
_PASSES = {"copy_": BLUE, "add": VERMILLION, "gelu": GREEN, "tanh": PURPLE}


class Fits(NamedTuple):
    """The fits drawn next to the probes: seconds of all-reduces by bytes, of matmuls by flops and bytes, of passes."""

    message_s: Callable[[float], float]
    product_s: Callable[[float, float], float] | None = None
    pass_s: Callable[[str, float], float] | None = None


def picture(title: str, measured: Measured, fits: Fits) -> Picture:
    """Draw the rates of matmuls and of passes over memory by size, and all-reduces, each next to its fit."""
    has_links = bool(measured["links"])
    drawn = Picture(10.5 if has_links else 7.5, 3.4)
    panels = drawn.subplots(1, 3 if has_links else 2)
    said = [_products(panels[0], measured, fits), _passes(panels[1], measured, fits)]
    if has_links:
        said.append(_links(panels[2], measured, fits))
    drawn.alt = f"{title} {' '.join(said)}"
    return drawn


def _products(axes: Axes, measured: Measured, fits: Fits) -> str:
    flops: list[float] = []
    rates: list[float] = []
    fitted: list[float] = []
    for name, colour in _PRODUCTS.items():
        rows = [row for row in measured["products"] if row["name"] == name]
        if not rows:
            continue
        here = [row["flops"] / min(row["times_s"]) / 1e9 for row in rows]
        axes.plot([row["flops"] for row in rows], here, "o", markersize=4, alpha=0.7, color=colour, label=name)
        flops += [row["flops"] for row in rows]
        rates += here
        if fits.product_s is not None:
            fitted += [row["flops"] / fits.product_s(row["flops"], row["size_bytes"]) / 1e9 for row in rows]
    if fitted:
        axes.plot(flops, fitted, "_", markersize=8, color=INK, label="fit")
    _scaled(axes, "flops of a product", "GFLOP/s", "Products")
    said = f"Products reach {significant(min(rates))} to {significant(max(rates))} GFLOP/s."
    return said + _off(fitted, rates)


def _passes(axes: Axes, measured: Measured, fits: Fits) -> str:
    ends: list[str] = []
    rates: list[float] = []
    fitted: list[float] = []
    for name, colour in _PASSES.items():
        rows = [row for row in measured["passes"] if row["name"] == name]
        if not rows:
            continue
        sizes = [row["size_bytes"] for row in rows]
        here = [size / min(row["times_s"]) / 1e9 for size, row in zip(sizes, rows, strict=True)]
        axes.plot(sizes, here, "o" if fits.pass_s else "o-", markersize=4, color=colour, label=name)
        ends.append(f"{name} {significant(here[-1])}")
        rates += here
        if fits.pass_s is not None:
            by_fit = [size / fits.pass_s(name, size) / 1e9 for size in sizes]
            axes.plot(sizes, by_fit, color=colour, linewidth=1)
            fitted += by_fit
    if fitted:
        axes.plot([], [], color=INK, linewidth=1, label="fit")  # every colour's line is a fit
    _scaled(axes, "bytes moved", "GB/s", "Passes over memory")
    return f"Passes over the largest tensors, in GB/s: {', '.join(ends)}." + _off(fitted, rates)


def _off(fitted: Sequence[float], measured: Sequence[float]) -> str:
    """Say how far a fit is from the probes; empty without a fit."""
    if not fitted:
        return ""
    distances = [abs(math.log(one / other)) for one, other in zip(fitted, measured, strict=True)]
    return f" Half of them are within {math.expm1(median(distances)):.0%} of the fit."


def _links(axes: Axes, measured: Measured, fits: Fits) -> str:
    rows = measured["links"]
    sizes = [row["size_bytes"] for row in rows]
    fitted = [1e3 * fits.message_s(size) for size in sizes]
    times_ms = [1e3 * min(row["times_s"]) for row in rows]
    axes.plot(sizes, times_ms, "o", markersize=5, color=ORANGE, label="measured")
    axes.plot(sizes, fitted, color=INK, label="fit")
    _scaled(axes, "bytes of an all-reduce", "ms", "Messages")
    said = f"All-reduces take {significant(fitted[0])} to {significant(fitted[-1])} ms by the fitted link."
    return said + _off(fitted, times_ms)


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
