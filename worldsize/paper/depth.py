"""The figures of a program with many identical layers, extrapolated from records with fewer layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from worldsize.hardware import Cluster
from worldsize.memory.use import KINDS
from worldsize.paper.alignment import Alignment, align
from worldsize.paper.figures import StepFigures
from worldsize.paper.result import PaperRun, cluster_of


@dataclass(frozen=True)
class DeepRun(StepFigures):
    """A step's figures at a depth that is not recorded, each on the line through those of the two largest recorded.

    `runs` maps each recorded number of layers to its run; their timelines show what a layer does.
    """

    num_layers: int
    runs: Mapping[int, PaperRun]

    def __post_init__(self) -> None:
        for first, second in pairwise(sorted(self.runs)):
            shallow, deep = self.runs[first].records, self.runs[second].records
            if len(shallow) != len(deep) or not all(
                one.num_operators < other.num_operators for one, other in zip(shallow, deep, strict=True)
            ):
                raise ValueError(
                    f"with {second} layers the program does no more than with {first} on every rank: "
                    "make its first argument the number of layers, or choose depths that add layers to a rank"
                )

    @property
    def _two(self) -> tuple[int, int]:
        first, second = sorted(self.runs)[-2:]
        return first, second

    @property
    def cluster(self) -> Cluster:  # type: ignore[override]
        """The cluster on which the records are priced."""
        return self.runs[self._two[1]].cluster

    @property
    def tokens_per_step(self) -> int | None:  # type: ignore[override]
        """The tokens of all ranks in a step."""
        return self.runs[self._two[1]].tokens_per_step

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.runs[self._two[1]].world_size

    @property
    def step_s(self) -> float:
        """Seconds of the last training step."""
        return self._line(lambda run: run.step_s)

    @property
    def step_parts_s(self) -> dict[str, float]:
        """Seconds of the step of the slowest recorded rank: compute, exposed communication, and bubble, the rest."""
        names = self.runs[self._two[1]].step_parts_s
        return {name: self._line(lambda run, name=name: run.step_parts_s[name]) for name in names}

    @property
    def family(self) -> str:
        """The family of layouts, as in `worldsize.published`; empty if no published program is of it."""
        return self.runs[self._two[1]].family

    @property
    def sent_bytes(self) -> float:
        """Bytes that the rank which sends most sends in the last training step."""
        return self._line(lambda run: run.sent_bytes)

    def flops(self, is_useful: bool = True) -> float:
        """Return the flops of a rank's step, averaged over the recorded ranks; useful flops exclude recomputation."""
        return self._line(lambda run: run.flops(is_useful))

    @property
    def without_flops(self) -> Mapping[str, int]:
        """The number of calls, by name, of custom operators priced only by the memory they move, at this depth."""
        names = self.runs[self._two[1]].without_flops
        return {name: round(self._line(lambda run, name=name: run.without_flops.get(name, 0))) for name in names}

    @cached_property
    def _alignments(self) -> Sequence[Alignment]:
        """The alignment of each rank's records of the two depths."""
        first, second = self._two
        records = self.runs[first].records, self.runs[second].records
        return [align(*pair) for pair in zip(*records, strict=True)]

    @property
    def no_peak(self) -> str:
        """Why these depths give no peak; empty if they give one.

        Two depths give one if the deeper program only repeats what the shallower does; otherwise a third must show the
        error. FSDP2 gathers a layer early and reduces another late, beside the one that runs: that takes three layers.
        """
        if len(self.runs) > 2 or not any(one.single for one in self._alignments):
            return ""
        first, second = self._two
        return (
            f"with {second} layers the memory of a rank changes as it never does with {first}; "
            "name a third depth, or record all layers, without depths"
        )

    @property
    def peak_bytes(self) -> float:
        """The peak bytes of the tensors of the recorded rank that holds most at this depth.

        It is the highest of the lines through what is held at each place of the program: with more layers, another
        place than in the records may hold most.

        Raises:
            ValueError: two depths are too few for a peak.
        """
        return sum(self.peak_by_kind.values())

    @property
    def peak_by_kind(self) -> dict[str, float]:
        """The bytes by kind at that peak.

        Raises:
            ValueError: two depths are too few for a peak.
        """
        if self.no_peak:
            raise ValueError(f"these depths give no peak: {self.no_peak}")
        return dict(zip(KINDS, self._highest, strict=True))

    @cached_property
    def _highest(self) -> Sequence[float]:
        """The bytes by kind, in the order of `KINDS`, on the highest of the lines."""
        pairs = (pair for one in self._alignments for pair in one.pairs | one.single)
        lines = ([self._on_line(*ends) for ends in zip(*pair, strict=True)] for pair in pairs)
        return max(lines, key=sum, default=[0.0] * len(KINDS))

    @cached_property
    def error_fraction(self) -> Mapping[str, float] | None:
        """The relative error, by figure, of lines through two depths; None if only two are recorded.

        It is how far the lines through the smaller depths miss the largest, or by how much the figure would change
        without the largest, whichever is more; of the peak also by how much it is below the line through the peaks.
        """
        *shallow, deepest = sorted(self.runs)
        if len(shallow) < 2:
            return None
        without = {depth: self.runs[depth] for depth in shallow}
        missed = _changes(DeepRun(deepest, without)._figures, self.runs[deepest].by_name())
        changed = _changes(DeepRun(self.num_layers, without)._figures, self.by_name())
        found = {name: max(missed[name], changed[name], key=abs) for name in missed.keys() & changed.keys()}
        if "peak_bytes" in found:  # the highest of several lines is never below the line through two of its values
            below = max(0.0, self._line(lambda run: run.peak_bytes) / self.peak_bytes - 1)
            found["peak_bytes"] = max(found["peak_bytes"], below, key=abs)
        return found

    @property
    def _figures(self) -> dict[str, float]:
        """The figures by name, with a peak even from two depths that give none."""
        return self.by_name() | {"peak_bytes": sum(self._highest)}

    def on(self, cluster: Cluster | str) -> DeepRun:
        """Price the same records on another cluster.

        Raises:
            ValueError: there is no such cluster, or it has too few GPUs.
        """
        found = cluster_of(cluster, self.world_size)
        return DeepRun(self.num_layers, {depth: run.on(found) for depth, run in self.runs.items()})

    def _line(self, figure: Callable[[PaperRun], float]) -> float:
        return self._on_line(*(figure(self.runs[depth]) for depth in self._two))

    def _on_line(self, start: float, stop: float) -> float:
        """Extrapolate linearly from the values at the two depths."""
        first, second = self._two
        return start + (stop - start) * (self.num_layers - first) / (second - first)

    def __repr__(self) -> str:
        recorded = ", ".join(map(str, sorted(self.runs)))
        return (
            f"DeepRun({self.described(f'{self.num_layers} layers, of which {recorded} were recorded {self._checked}')})"
        )

    @property
    def _checked(self) -> str:
        """A phrase on the error of the lines."""
        errors = self.error_fraction
        if errors is None:
            return "(no third depth, so the error of the lines is unknown)"
        named = {"step": "step_s", "peak": "peak_bytes"}
        of_each = (f"{name} {abs(errors[figure]):.1%}" for name, figure in named.items() if figure in errors)
        return f"(error of the lines: {', '.join(of_each)})"


def _changes(figures: Mapping[str, float], true: Mapping[str, float]) -> dict[str, float]:
    """The relative differences of figures from true ones, by name."""
    return {name: value / true[name] - 1 for name, value in figures.items() if true[name]}


def depths_of(depths: Sequence[int], num_layers: object) -> list[int]:
    """Validate the depths to record.

    Raises:
        ValueError: they are fewer than two, not ascending, or above the program's first argument.
    """
    is_sequence = isinstance(depths, Sequence) and all(type(depth) is int for depth in depths)
    rising = sorted(set(depths)) if is_sequence else []
    if not isinstance(num_layers, int) or len(rising) < 2 or rising[0] < 1 or rising[-1] > num_layers:
        raise ValueError(
            f"depths are {depths!r}: give two or more numbers of layers, none above the program's first argument, "
            f"its number of layers, which is {num_layers!r}"
        )
    return rising
