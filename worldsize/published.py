"""How far published training programs were from the figures computed here: a range of factors for each kind of program.

`data/published_ranges.csv` has the ranges. `python tests/support/published_ranges.py` makes it from all published rows.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CSV = Path(__file__).parent / "data" / "published_ranges.csv"
# what has ranges: figures on paper, the least seconds of a plan, and all its bounds one after the other
STEP, PEAK, BOUND, SERIAL = "step", "peak", "bound", "serial"
TENSOR_OR_PIPELINE, DATA = "tensor or pipeline parallelism", "data parallelism or FSDP"  # the families of layouts
# of the published programs as computed here; a program with less waits for something that none of them waited for
LEAST_HFU_FRACTION = 0.15
# half of the pairs of published steps of one publication and family have a ratio farther than this from that on paper
RATIO_ERROR_FRACTION = 0.05


@dataclass(frozen=True)
class PublishedRange:
    """The factors between the published figures of one kind of program and those computed here, the central 90%.

    The kind is a layout of one of the `families`, on GPUs of one of the `architectures`, `least_gpus` to `most_gpus` of
    them. Of `num_rows` published figures, as many as a twentieth, rounded down, are left out at each end.
    """

    figure: str
    families: tuple[str, ...]
    architectures: tuple[str, ...]
    least_gpus: int
    most_gpus: int
    low: float
    high: float
    num_rows: int
    sources: tuple[str, ...]

    def around(self, value: float) -> tuple[float, float]:
        """Return the range of a figure that is computed as `value`."""
        return self.low * value, self.high * value

    def has(self, family: str, architecture: str, num_gpus: int) -> bool:
        """Whether a program is of this kind."""
        is_as_large = self.least_gpus <= num_gpus <= self.most_gpus
        return is_as_large and family in self.families and architecture in self.architectures

    @property
    def kind(self) -> str:
        """The programs that were compared, in words."""
        sizes = f"{self.least_gpus:,} to {self.most_gpus:,} GPUs"
        return f"programs with {' or '.join(self.families)} on {sizes} ({', '.join(self.architectures)})"

    def __str__(self) -> str:
        times = f"{self.low:.2f} to {self.high:.2f} times"
        if self.figure == PEAK:
            return f"published peaks were {times} as high ({self.num_rows} rows)"
        how = "that least" if self.figure == BOUND else "as long"
        return f"published programs of this kind took {times} {how} ({self.num_rows} rows)"


@cache
def ranges() -> tuple[PublishedRange, ...]:
    """Read the ranges, of each figure the narrower kinds first."""
    with _CSV.open(newline="", encoding="utf-8") as file:
        return tuple(_parse_range(row) for row in csv.DictReader(file))


def find_range(
    figure: str, family: str, architecture: str, num_gpus: int, hfu_fraction: float = 1.0
) -> PublishedRange | None:
    """Return the range of the narrowest kind that a program belongs to; None if nothing like it was compared."""
    if hfu_fraction < LEAST_HFU_FRACTION:
        return None
    kinds = (one for one in ranges() if one.figure == figure and one.has(family, architecture, num_gpus))
    return next(kinds, None)


def nearest_range(figure: str, family: str, num_gpus: int) -> PublishedRange:
    """Return the range of the widest kind of a family, on any architecture: of about as many GPUs, or of the most.

    Without a family, as with experts or context parallelism, tensor or pipeline parallelism is the nearest.

    Raises:
        LookupError: no program of the family was compared.
    """
    kinds = [one for one in ranges() if one.figure == figure and (family or TENSOR_OR_PIPELINE) in one.families]
    if not kinds:
        raise LookupError(f"no {figure} of a program with {family} was compared with a published one")
    as_large = [one for one in kinds if one.least_gpus <= num_gpus <= one.most_gpus]
    return (as_large or sorted(kinds, key=lambda one: one.most_gpus))[-1]


def describe(step: PublishedRange | None, peak: PublishedRange | None) -> str:
    """Describe the ranges of a step and of a peak in a phrase."""
    if step is None and peak is None:
        return "nothing like this was compared with published programs"
    return f"{step or 'no published step like this was compared'}, {peak or 'no published peak like this was compared'}"


def _parse_range(row: dict[str, str]) -> PublishedRange:
    return PublishedRange(
        figure=row["figure"],
        families=tuple(row["families"].split("; ")),
        architectures=tuple(row["architectures"].split("; ")),
        least_gpus=int(row["least_gpus"]),
        most_gpus=int(row["most_gpus"]),
        low=float(row["low"]),
        high=float(row["high"]),
        num_rows=int(row["num_rows"]),
        sources=tuple(row["sources"].split("; ")),
    )
