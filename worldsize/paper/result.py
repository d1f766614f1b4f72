"""The result of a run on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from worldsize import hardware
from worldsize.event import COMMUNICATION
from worldsize.hardware import Cluster
from worldsize.intervals import exposed, length_s, working
from worldsize.memory.use import MemoryUse
from worldsize.paper import price
from worldsize.paper.family import family_of
from worldsize.paper.figures import StepFigures
from worldsize.paper.record import END, RankRecord
from worldsize.timeline import Timeline
from worldsize.units import format_ranks


@dataclass(frozen=True)
class Kind:
    """Recorded ranks whose records are equal, except for the ranks in their groups.

    `num_ranks` is how many ranks of the job they represent together; None if that is not known.
    """

    ranks: tuple[int, ...]
    num_ranks: int | None

    @property
    def rank(self) -> int:
        """The first of these ranks."""
        return self.ranks[0]


@dataclass
class PaperRun(StepFigures):
    """A program's record on some ranks of a job, priced on a cluster.

    The step is the last training step: from the previous update, or from the first forward pass, to its own update; or
    the whole program if it uses no module or no optimizer.
    """

    records: Sequence[RankRecord] = field(repr=False)
    cluster: Cluster
    tokens_per_step: int | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.records[0].world_size

    @cached_property
    def _priced(self) -> price.PricedRecords:
        return price.price(self.records, self.cluster)

    @cached_property
    def timeline(self) -> Timeline:
        """The recorded ranks' events from the start of the program, with the number of ranks that each represents."""
        stands_for: dict[int, int] = {}
        for kind in self.kinds:
            if kind.num_ranks:
                share, left = divmod(kind.num_ranks, len(kind.ranks))
                stands_for |= {rank: share + (place < left) for place, rank in enumerate(kind.ranks)}
        return replace(self._priced.timeline, stands_for=stands_for)

    @property
    def step_s(self) -> float:
        """Seconds of the last training step on the slowest recorded rank."""
        return max(stop_s - start_s for start_s, stop_s in self._priced.spans_s.values())

    @property
    def step_parts_s(self) -> dict[str, float]:
        """Seconds of the step of the slowest recorded rank: compute, exposed communication, and bubble, the rest."""
        rank, (start_s, stop_s) = max(self._priced.spans_s.items(), key=lambda span: span[1][1] - span[1][0])
        events = [
            replace(event, start_s=max(event.start_s, start_s), end_s=min(event.end_s, stop_s))
            for event in self.timeline.of(rank)
            if event.start_s < stop_s and event.end_s > start_s
        ]
        compute_s, exposed_s = length_s(working(events)), length_s(exposed(events))
        bubble_s = max(0.0, stop_s - start_s - compute_s - exposed_s)
        return {"compute": compute_s, "exposed communication": exposed_s, "bubble": bubble_s}

    @cached_property
    def family(self) -> str:  # type: ignore[override]
        """The family of layouts, as in `worldsize.published`; empty if no published program is of it."""
        return family_of(self.records)

    @property
    def sent_bytes(self) -> float:
        """Bytes that the rank which sends most sends in the last training step."""
        sent = dict.fromkeys(self._priced.spans_s, 0.0)
        for event in self.timeline.events:
            start_s, stop_s = self._priced.spans_s[event.rank]
            if event.kind == COMMUNICATION and start_s <= event.start_s < stop_s:
                sent[event.rank] += event.sent_bytes
        return max(sent.values())

    def flops(self, is_useful: bool = True) -> float:
        """Return the flops of a rank's step, averaged over the recorded ranks; useful flops exclude recomputation."""
        of_ranks = self._priced.useful_flops if is_useful else self._priced.flops
        return sum(of_ranks.values()) / len(of_ranks)

    @property
    def without_flops(self) -> dict[str, int]:
        """The number of calls on all recorded ranks, by name, of custom operators priced only by the memory they move.

        With `torch.utils.flop_counter.register_flop_formula`, their flops count too.
        """
        return dict(sum((Counter(record.without_flops) for record in self.records), Counter[str]()))

    @property
    def memory(self) -> list[MemoryUse]:
        """The memory use of each recorded rank, with the GPU's capacity."""
        return [replace(record.memory, capacity_bytes=self.cluster.gpu.memory_bytes) for record in self.records]

    @property
    def peak_bytes(self) -> float:
        """The most bytes that a recorded rank's tensors hold."""
        return self._fullest.most_bytes

    @property
    def peak_by_kind(self) -> dict[str, int]:
        """The bytes by kind at the peak of the recorded rank that holds most."""
        return self._fullest.peak

    @property
    def _fullest(self) -> MemoryUse:
        return max((one.memory for one in self.records), key=lambda memory: memory.most_bytes)

    def by_name(self) -> dict[str, float]:
        """Return the figures by name, including the peak's bytes by kind."""
        return super().by_name() | {f"{kind.replace(' ', '_')}_bytes": size for kind, size in self.peak_by_kind.items()}

    @property
    def kinds(self) -> list[Kind]:
        """Group the recorded ranks that do the same; the kinds of other ranks are unknown."""
        alike: list[list[RankRecord]] = []
        for one in self.records:
            same = next((kind for kind in alike if kind[0].is_like(one)), None)
            if same is None:
                alike.append([one])
            else:
                same.append(one)
        share, left = divmod(self.world_size, len(self.records))
        are_all_alike = len(alike) == 1 < len(self.records)
        if are_all_alike:
            return [Kind(tuple(one.rank for one in self.records), self.world_size)]
        is_known = not left and (share == 1 or self._is_one_of_each)
        return [Kind(tuple(one.rank for one in kind), share * len(kind) if is_known else None) for kind in alike]

    @property
    def _is_one_of_each(self) -> bool:
        """Whether the recorded ranks are identical groups that exchange messages, so each represents its position."""
        ranks = tuple(one.rank for one in self.records)
        sends = ((one, post) for one in self.records for post in one.posts if post.op == "send")
        groups = {tuple(sorted(one.groups[post.group].ranks)) for one, post in sends}
        if sorted(rank for group in groups for rank in group) != list(ranks):
            return False
        record_of = {one.rank: one for one in self.records}
        first, *others = sorted(groups)
        return all(
            len(group) == len(first)
            and all(record_of[rank].is_like(record_of[same]) for rank, same in zip(group, first, strict=True))
            for group in others
        )

    def on(self, cluster: Cluster | str) -> PaperRun:
        """Price the same record on another cluster.

        Raises:
            ValueError: the cluster is unknown or has too few GPUs, or the program asked how many ranks a node has or
                what GPU, and this cluster's nodes have a different number or GPU.
        """
        found = cluster_of(cluster, self.world_size)
        num_ranks = min(found.gpus_per_node, self.world_size)
        for one in self.records:
            if one.local_world_size not in (0, num_ranks):
                raise ValueError(
                    f"the program asks how many ranks a node has ({one.asked_at}); it was recorded with "
                    f"{one.local_world_size}, and on {found.name} there are {num_ranks}: record it again with "
                    f"ws.paper(..., cluster=...)"
                )
            if one.gpu not in ("", found.gpu.name):
                raise ValueError(
                    f"the program asks what GPU it has ({one.asked_kind_at}); it was recorded with {one.gpu}, and "
                    f"{found.name} has {found.gpu.name}: record it again with ws.paper(..., cluster=...)"
                )
        return PaperRun(self.records, found, self.tokens_per_step)

    def __repr__(self) -> str:
        is_bounded = any(one.kind == END for record in self.records for one in record.boundaries)
        whole = "" if is_bounded else ", with no update by an optimizer of torch: the step is the whole program"
        return f"PaperRun({self.described(f'recorded: {format_ranks([one.rank for one in self.records])}{whole}')})"


def cluster_of(cluster: Cluster | str, world_size: int) -> Cluster:
    """Return the cluster, given itself or by name, if it has enough GPUs.

    Raises:
        ValueError: there is no such cluster, or it has too few GPUs.
    """
    found = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
    if not isinstance(found, Cluster):
        known = "a cluster of worldsize.hardware, or the name of one such as 'dgx-h100'"
        raise ValueError(f"cluster must be {known}; got a {type(cluster).__name__}")
    if world_size > found.world_size:
        raise ValueError(f"{found.name} has {found.world_size} GPUs; {world_size} ranks do not fit on it")
    return found
