"""The figures of a program with many identical layers, extrapolated from records with fewer layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from worldsize.hardware import Cluster
from worldsize.paper.alignment import levels_side_by_side
from worldsize.paper.figures import StepFigures
from worldsize.paper.record import RankRecord
from worldsize.paper.result import PaperRun, cluster_of


@dataclass(frozen=True)
class DeepRun(StepFigures):
    """A step's figures at a depth that is not recorded, each on the line through those of the two largest recorded.

    `runs` maps each recorded number of layers to its run; their timelines show what a layer does.
    """

    num_layers: int
    runs: Mapping[int, PaperRun]

    def __post_init__(self) -> None:
        shallow, deep = self._records
        if len(shallow) != len(deep) or not all(
            one.num_operators < other.num_operators for one, other in zip(shallow, deep, strict=True)
        ):
            first, second = self._two
            raise ValueError(
                f"with {second} layers the program does no more than with {first} on every rank: "
                "make its first argument the number of layers, or choose depths that add layers to a rank"
            )

    @property
    def _two(self) -> tuple[int, int]:
        first, second = sorted(self.runs)[-2:]
        return first, second

    @property
    def _records(self) -> tuple[Sequence[RankRecord], Sequence[RankRecord]]:
        first, second = self._two
        return self.runs[first].records, self.runs[second].records

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
    def peak_bytes(self) -> float:  # type: ignore[override]
        """The peak bytes of the tensors of the recorded rank that holds most at this depth."""
        return max(self._peak_of(*pair) for pair in zip(*self._records, strict=True))

    def _peak_of(self, shallow: RankRecord, deep: RankRecord) -> float:
        """Extrapolate what a rank holds at each place of the program, and its peak, and return the largest.

        With more layers, the peak may be at a different place than in the records.
        """
        peaks = shallow.memory.most_bytes, deep.memory.most_bytes
        return max(self._on_line(*pair) for pair in [peaks, *levels_side_by_side(shallow, deep)])

    @property
    def error_fraction(self) -> Mapping[str, float] | None:
        """The relative error, by figure, of a line through two depths at a third; None if only two are recorded.

        For the peak, it is at least the relative change of `peak_bytes` without the third depth, because the peak may
        move to a different place.
        """
        *shallow, deepest = sorted(self.runs)
        if len(shallow) < 2:
            return None
        without = {depth: self.runs[depth] for depth in shallow}
        tried, there = DeepRun(deepest, without).by_name(), self.runs[deepest].by_name()
        missed = {name: value / there[name] - 1 for name, value in tried.items() if there[name]}
        changed = DeepRun(self.num_layers, without).peak_bytes / self.peak_bytes - 1
        return missed | {"peak_bytes": max(missed["peak_bytes"], changed, key=abs)}

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
        return f"DeepRun({self.described(f'{self.num_layers} layers, of which {recorded} were recorded')})"


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
