"""The ranges of `worldsize.published`, from all published rows: run as a script, it records them and writes the ranges.

A publication's rows may share a mistake, so coverage is also measured with each publication left out: how many of its
rows lie inside the range of the others of their kind.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import published_memory
import published_steps
from repository import ROOT

from worldsize.planning import bounds, serial
from worldsize.published import (
    BOUND,
    DATA,
    LEAST_HFU_FRACTION,
    PEAK,
    RATIO_ERROR_FRACTION,
    SERIAL,
    STEP,
    TENSOR_OR_PIPELINE,
    PublishedRange,
)

ON_PAPER_CSV = ROOT / "tests/data/published_on_paper.csv"
RANGES_CSV = ROOT / "worldsize/data/published_ranges.csv"
GRAIN = 20  # a range ends at a multiple of 1 / GRAIN, and a share of 1 / GRAIN of its rows is outside at each end
LEAST_ROWS, LEAST_SOURCES = 5, 2
# figure, families, architectures, least and most GPUs; the numbers of GPUs were chosen after a look at the rows
KindOfRows: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...], int, int]
_KINDS_OF_STEPS = (
    ((TENSOR_OR_PIPELINE,), ("ampere",), 1, 4096),
    ((DATA,), ("ampere",), 1, 128),
    ((DATA,), ("ampere", "hopper"), 1, 128),
    ((DATA,), ("ampere", "hopper"), 129, 4096),
)
KINDS: tuple[KindOfRows, ...] = (
    *((STEP, *kind) for kind in _KINDS_OF_STEPS),
    (PEAK, (TENSOR_OR_PIPELINE, DATA), ("ampere", "hopper"), 1, 4096),
    *((BOUND, *kind) for kind in _KINDS_OF_STEPS),
    *((SERIAL, *kind) for kind in _KINDS_OF_STEPS),
)
_PUBLICATIONS = {
    "BLOOM-176B": "BLOOM",
    "Korthikanti": "Korthikanti et al. 2022",
    "Megatron-LM": "Megatron-LM's README",
    "MosaicML": "MosaicML",
    "Narayanan": "Narayanan et al. 2021",
    "torchtitan": "torchtitan",
    "vTrain": "vTrain",
}


@dataclass(frozen=True)
class Compared:
    """A published figure, and what it is compared with: the same on paper, or a plan's bound or serial time.

    `hfu_fraction` is that on paper, and is known of steps alone.
    """

    id: str
    figure: str
    source: str
    family: str
    architecture: str
    num_gpus: int
    published: float
    on_paper: float
    hfu_fraction: float | None

    @property
    def factor(self) -> float:
        return self.published / self.on_paper


@dataclass(frozen=True)
class Coverage:
    """How many rows of a kind its range holds; and of those whose publication can be left out, how many then."""

    num_rows: int
    num_inside: int
    num_tried: int
    num_inside_without_source: int


def record() -> list[Compared]:
    """Compute every published figure on paper but those left out, and the bound and the serial time of every plan."""
    return [*map(compare_step, steps()), *map(_compare_peak, published_memory.compared()), *compare_plans()]


def steps() -> list[dict[str, str]]:
    """The rows of published steps that have a figure on paper."""
    return [row for row in published_steps.rows() if not published_steps.why_left_out(row)]


def compare_step(row: dict[str, str]) -> Compared:
    """Compute a published step on paper."""
    step = published_steps.on_paper(row)
    return Compared(
        id=row["id"],
        figure=STEP,
        source=_PUBLICATIONS[row["source"].split()[0]],
        family=family(row),
        architecture=published_steps.plan_of(row).cluster.gpu.architecture,
        num_gpus=int(row["n_gpus"]),
        published=step.published_s,
        on_paper=step.paper_s,
        hfu_fraction=step.hfu_flops / step.paper_s,
    )


def compare_plans() -> Iterator[Compared]:
    """Compute the least seconds, and then the serial time, of every published plan with equal stages."""
    plans = [(row, published_steps.plan_of(row)) for row in steps()]
    equal = [(row, plan) for row, plan in plans if plan.num_stage_layers and plan.model.num_layers > 1]
    for figure, seconds in ((BOUND, lambda plan: bounds.least(plan).seconds), (SERIAL, serial.step_s)):
        for row, plan in equal:
            yield Compared(
                id=row["id"],
                figure=figure,
                source=_PUBLICATIONS[row["source"].split()[0]],
                family=family(row),
                architecture=plan.cluster.gpu.architecture,
                num_gpus=int(row["n_gpus"]),
                published=published_steps.published_s(row),
                on_paper=seconds(plan),
                hfu_fraction=None,
            )


def family(row: dict[str, str]) -> str:
    """The family of a published layout."""
    return TENSOR_OR_PIPELINE if int(row["tp"]) > 1 or int(row["pp"]) > 1 else DATA


def _compare_peak(peak: published_memory.Peak) -> Compared:
    is_torchtitan = peak.name.startswith("run_tt24")
    return Compared(
        id=peak.name,
        figure=PEAK,
        source="torchtitan" if is_torchtitan else _PUBLICATIONS["Korthikanti"],
        family=DATA if is_torchtitan and "_8b_" in peak.name else TENSOR_OR_PIPELINE,
        architecture="hopper" if is_torchtitan else "ampere",
        num_gpus=8,  # more in some rows; the ranges of peaks do not depend on it
        published=peak.published_bytes,
        on_paper=peak.paper_bytes,
        hfu_fraction=None,
    )


def read() -> list[Compared]:
    """Read what was recorded last."""
    with ON_PAPER_CSV.open(newline="") as file:
        return [
            Compared(
                **{name: row[name] for name in ("id", "figure", "source", "family", "architecture")},
                num_gpus=int(row["num_gpus"]),
                published=float(row["published"]),
                on_paper=float(row["on_paper"]),
                hfu_fraction=float(row["hfu_fraction"]) if row["hfu_fraction"] else None,
            )
            for row in csv.DictReader(file)
        ]


def central(factors: Iterable[float]) -> tuple[float, float]:
    """The central 90% of factors, rounded outward.

    Left out are the n / 20 smallest and the n / 20 largest of n, rounded down.
    """
    ordered = sorted(factors)
    num_out = len(ordered) // GRAIN
    low, high = ordered[num_out], ordered[-1 - num_out]
    return math.floor(low * GRAIN) / GRAIN, math.ceil(high * GRAIN) / GRAIN


def range_of(kind: KindOfRows, compared: Sequence[Compared]) -> PublishedRange:
    """The range of a kind.

    Raises:
        ValueError: it would show single rows.
    """
    rows = rows_of(kind, compared)
    sources = tuple(sorted({row.source for row in rows}))
    if len(rows) < LEAST_ROWS or len(sources) < LEAST_SOURCES:
        raise ValueError(f"{kind} has {len(rows)} rows of {len(sources)} sources; merge it with another")
    return PublishedRange(*kind, *central(row.factor for row in rows), len(rows), sources)


def rows_of(kind: KindOfRows, compared: Sequence[Compared]) -> list[Compared]:
    """The rows of a kind."""
    figure, *_ = kind
    empty = PublishedRange(*kind, 1, 1, 0, ())
    return [row for row in compared if row.figure == figure and empty.has(row.family, row.architecture, row.num_gpus)]


def coverage(kind: KindOfRows, compared: Sequence[Compared]) -> Coverage:
    """Measure how many rows the range of a kind holds."""
    rows, tried = rows_of(kind, compared), []
    whole = central(row.factor for row in rows)
    for row in rows:
        others = [other.factor for other in rows if other.source != row.source]
        if len(others) >= LEAST_ROWS:
            tried.append(_is_inside(row, central(others)))
    return Coverage(len(rows), sum(_is_inside(row, whole) for row in rows), len(tried), sum(tried))


def _is_inside(row: Compared, ends: tuple[float, float]) -> bool:
    low, high = ends
    return low <= row.factor <= high


def least_hfu_fraction(compared: Sequence[Compared]) -> float:
    """The least HFU of a published program on paper, rounded down like a range."""
    least = min(row.hfu_fraction for row in compared if row.hfu_fraction is not None)
    return math.floor(least * GRAIN) / GRAIN


def ratio_error_fraction(compared: Sequence[Compared]) -> float:
    """How far the ratio of two published steps is from that on paper, for the median pair of a publication and family.

    It is rounded down, as the least that tells two layouts apart.
    """
    pairs = combinations([row for row in compared if row.figure == STEP], 2)
    factors = [(a.factor, b.factor) for a, b in pairs if (a.source, a.family) == (b.source, b.family)]
    error = statistics.median(max(pair) / min(pair) - 1 for pair in factors)
    return math.floor(error * GRAIN) / GRAIN


def table(rows: Sequence[Compared] | Sequence[PublishedRange]) -> str:
    """Rows as CSV, with six digits of what is computed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(vars(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in vars(row).items()} for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return "; ".join(value)
    return f"{value:.6g}" if isinstance(value, float) else value


def report(compared: Sequence[Compared]) -> str:
    """A line for each kind: its range and its coverage."""
    lines = []
    for kind in KINDS:
        one, held = range_of(kind, compared), coverage(kind, compared)
        figure, families, architectures, least, most = kind
        name = f"{figure}, {' or '.join(families)}, {' or '.join(architectures)}, {least} to {most} GPUs"
        lines.append(
            f"{name}: {one.low:.2f} to {one.high:.2f}, {one.high / one.low:.2f} wide; "
            f"{held.num_inside} of {held.num_rows} rows inside, "
            f"{held.num_inside_without_source} of {held.num_tried} without their publication"
        )
    lines.append(f"the least HFU: {least_hfu_fraction(compared):.2f}, in the library {LEAST_HFU_FRACTION:.2f}")
    error = ratio_error_fraction(compared)
    lines.append(f"the error of a ratio: {error:.2f}, in the library {RATIO_ERROR_FRACTION:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    ON_PAPER_CSV.write_text(table(record()))
    RANGES_CSV.write_text(table([range_of(kind, read()) for kind in KINDS]))
    print(report(read()))
