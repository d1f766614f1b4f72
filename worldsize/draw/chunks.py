"""Who holds what: whose parts are in each chunk of each rank's tensor, step by step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from worldsize.draw._annotations import white_box
from worldsize.draw.picture import Picture, finish
from worldsize.palette import GREEN, INK, SKY

_WIDTH_IN, _CELL_IN, _ROW_IN = 9.0, 0.38, 0.3
_NAMES_IN, _GAP_IN, _HEAD_IN = 0.6, 0.18, 0.55  # ranks on the left; between grids; step and chunks above each
_LONGEST = 5  # characters in a cell: sums of more ranks are written as a count
_MOST_LISTED = 160  # cells that the alt text lists one by one

Held = Sequence[Sequence[Collection[int]]]  # by rank and chunk: the ranks whose parts are in it


@dataclass(frozen=True)
class _Grids:
    """The sums after each step, and the positions of their grids, in inches from the top left corner."""

    steps: Mapping[str, Held]

    def __post_init__(self) -> None:
        shapes = {(len(held), *{len(chunks) for chunks in held}) for held in self.steps.values()}
        if len(shapes) != 1 or len(shape := next(iter(shapes))) != 2 or 0 in shape:
            raise ValueError(
                "There are no chunks to draw: give {step: rows by rank}, each row with the ranks in each chunk, and "
                "the same numbers of ranks and chunks in every step."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of ranks and of chunks."""
        held = next(iter(self.steps.values()))
        return len(held), len(held[0])

    @property
    def per_row(self) -> int:
        """The number of grids that fit side by side."""
        return max(1, int((_WIDTH_IN - _NAMES_IN + _GAP_IN) / (self.shape[1] * _CELL_IN + _GAP_IN)))

    @property
    def height_in(self) -> float:
        num_rows = -(-len(self.steps) // self.per_row)
        return num_rows * (_HEAD_IN + self.shape[0] * _ROW_IN + _GAP_IN)

    def corner(self, number: int) -> tuple[float, float]:
        """Return the top left corner of the cells of a grid."""
        row, column = divmod(number, self.per_row)
        num_ranks, num_chunks = self.shape
        left = _NAMES_IN + column * (num_chunks * _CELL_IN + _GAP_IN)
        return left, _HEAD_IN + row * (_HEAD_IN + num_ranks * _ROW_IN + _GAP_IN)

    def word(self, ranks: Collection[int]) -> str:
        """Return the text of a cell: `all`, the ranks in it, or how many they are."""
        if len(set(ranks)) == self.shape[0]:
            return "all"
        listed = "+".join(str(rank) for rank in sorted(ranks)) or "-"
        return listed if len(listed) <= _LONGEST else f"{len(ranks)} of {self.shape[0]}"

    def describe(self) -> str:
        """Describe all grids, or how many of their chunks are complete."""
        num_cells = len(self.steps) * self.shape[0] * self.shape[1]
        return "; ".join(
            f"{name}, {self._listed(held) if num_cells <= _MOST_LISTED else self._count(held)}"
            for name, held in self.steps.items()
        )

    def _listed(self, held: Held) -> str:
        return ", ".join(f"rank {rank}: {' '.join(map(self.word, chunks))}" for rank, chunks in enumerate(held))

    def _count(self, held: Held) -> str:
        words = [self.word(ranks) for chunks in held for ranks in chunks]
        return f"{words.count('all')} of {len(words)} complete"


def chunks(steps: Mapping[str, Held], title: str = "") -> Picture:
    """Draw a grid of ranks by chunks for each step: whose parts are summed in each chunk of each rank's tensor.

    `steps` gives for each step, by rank and chunk, the ranks whose parts are in the sum. The more of them, the darker
    a cell; it is green when all are in it, and framed where the step has changed it.

    Raises:
        ValueError: there is no step, rank or chunk, or steps differ in their numbers of ranks or chunks.
    """
    grids = _Grids(steps)
    picture = Picture(_WIDTH_IN, grids.height_in + 0.35)
    panel = picture.subplots()
    panel.set(xlim=(0, _WIDTH_IN), ylim=(grids.height_in, 0), xticks=[], yticks=[])
    before = None
    for number, (name, held) in enumerate(steps.items()):
        _draw_grid(panel, grids, number, name, held, before)
        before = held
    finish(panel, title, frame=())
    about = f"{title}: whose parts are in each chunk" if title else "Whose parts are in each chunk"
    picture.alt = f"{about}. {grids.describe()}."
    return picture


def _draw_grid(panel: Axes, grids: _Grids, number: int, name: str, held: Held, before: Held | None) -> None:
    left, top = grids.corner(number)
    num_ranks, num_chunks = grids.shape
    style = {"fontsize": 8.5, "color": INK}
    panel.text(left, top - 0.32, name, va="center", fontweight="bold", **style)
    for chunk in range(num_chunks):
        panel.text(left + (chunk + 0.5) * _CELL_IN, top - 0.1, f"{chunk}", ha="center", va="center", **style)
    for rank, row in enumerate(held):
        y = top + rank * _ROW_IN
        if number % grids.per_row == 0:
            panel.text(left - 0.08, y + _ROW_IN / 2, f"rank {rank}", ha="right", va="center", **style)
        for chunk, ranks in enumerate(row):
            is_new = before is not None and set(before[rank][chunk]) != set(ranks)
            _draw_cell(panel, left + chunk * _CELL_IN, y, grids.word(ranks), len(ranks) / num_ranks, is_new)


def _draw_cell(panel: Axes, x: float, y: float, word: str, share: float, is_new: bool) -> None:
    strength = 1.0 if word == "all" else 0.15 + 0.75 * share
    tint = tuple(1 - strength * (1 - part) for part in to_rgb(GREEN if word == "all" else SKY))
    edge = {"edgecolor": INK, "linewidth": 1.6, "zorder": 3} if is_new else {"edgecolor": "white", "linewidth": 0.8}
    panel.add_patch(Rectangle((x + 0.02, y + 0.02), _CELL_IN - 0.04, _ROW_IN - 0.04, facecolor=tint, **edge))
    box = white_box(0.6, alpha=0.85)
    middle = x + _CELL_IN / 2, y + _ROW_IN / 2
    size = 7.5 if len(word) < _LONGEST else 6.5
    panel.text(*middle, word, ha="center", va="center", fontsize=size, color=INK, bbox=box, zorder=4)
