"""The result of a run on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from worldsize import hardware
from worldsize.hardware import Cluster
from worldsize.memory.use import MemoryUse
from worldsize.paper import price
from worldsize.paper.record import RankRecord
from worldsize.timeline import Timeline
from worldsize.units import format_bytes, format_ranks, format_time_s


@dataclass(frozen=True)
class Kind:
    """Recorded ranks whose records are equal, up to which ranks are in their groups.

    `num_ranks` is how many ranks of the job each of them stands for together; None where that is not known.
    """

    ranks: tuple[int, ...]
    num_ranks: int | None

    @property
    def rank(self) -> int:
        """The first of them."""
        return self.ranks[0]


@dataclass
class PaperRun:
    """A program's record on some ranks of a job, priced on a cluster.

    The step is the last of training: from the update before it, or from the first forward pass, to its own update; the
    whole program where a module or an optimizer has no part in it.
    """

    records: Sequence[RankRecord] = field(repr=False)
    cluster: Cluster
    tokens_per_step: int | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.records[0].world_size

    @cached_property
    def _priced(self) -> price.Priced:
        return price.price(self.records, self.cluster)

    @property
    def timeline(self) -> Timeline:
        """The events of the recorded ranks, from the start of the program."""
        return self._priced.timeline

    @property
    def step_s(self) -> float:
        """Seconds of the last training step on the slowest recorded rank."""
        return max(self._priced.step_s.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of a step per second and GPU.

        Raises:
            ValueError: the number of tokens was not given.
        """
        if self.tokens_per_step is None:
            raise ValueError("a program does not say what a token is: give tokens_per_step, of all ranks, to ws.paper")
        return self.tokens_per_step / self.step_s / self.world_size

    @property
    def mfu_fraction(self) -> float:
        """The useful flops of a step over those that the recorded GPUs could do meanwhile in bfloat16.

        Useful are the flops of products and attention, of a causal attention half, without what is computed again in
        backward. Source of the term: Chowdhery et al. 2022 (PaLM), appendix B, who count the whole of attention.
        """
        return self._fraction(self._priced.useful_flops)

    @property
    def hfu_fraction(self) -> float:
        """The same with what is computed again: hardware's flops."""
        return self._fraction(self._priced.flops)

    def _fraction(self, flops: Mapping[int, float]) -> float:
        peaks = self.cluster.gpu.peak_flops_per_s
        peak = peaks.get("bfloat16") or peaks.get("float16") or max(peaks.values())
        return sum(flops.values()) / len(flops) / self.step_s / peak

    @property
    def memory(self) -> list[MemoryUse]:
        """What the tensors of each recorded rank held, with the GPU's capacity."""
        return [replace(one.memory, capacity_bytes=self.cluster.gpu.memory_bytes) for one in self.records]

    @property
    def fits(self) -> bool:
        """True if no recorded rank's tensors hold more than its GPU has."""
        return all(one.memory.most_bytes <= self.cluster.gpu.memory_bytes for one in self.records)

    @property
    def kinds(self) -> list[Kind]:
        """The recorded ranks by what they do; ranks that were not recorded are not known to be of a kind."""
        alike: list[list[RankRecord]] = []
        for one in self.records:
            same = next((kind for kind in alike if kind[0].is_like(one)), None)
            if same is None:
                alike.append([one])
            else:
                same.append(one)
        share = self.world_size // len(self.records)
        is_known = len(alike) == 1 or self._is_one_of_each
        return [Kind(tuple(one.rank for one in kind), share * len(kind) if is_known else None) for kind in alike]

    @property
    def _is_one_of_each(self) -> bool:
        """True when the recorded ranks are a group that exchanges messages: each stands for its place in all such."""
        ranks = tuple(one.rank for one in self.records)
        groups = (one.groups[post.group].ranks for one in self.records for post in one.posts if post.op == "send")
        return any(tuple(sorted(group)) == ranks for group in groups)

    def on(self, cluster: Cluster | str) -> PaperRun:
        """The same record, priced on another cluster.

        Raises:
            ValueError: there is no such cluster, or it has too few GPUs.
        """
        return PaperRun(self.records, cluster_of(cluster, self.world_size), self.tokens_per_step)

    def __repr__(self) -> str:
        most = max(one.memory.most_bytes for one in self.records)
        gpu = self.cluster.gpu
        room = "fits on" if self.fits else "does not fit on"
        ranks = format_ranks([one.rank for one in self.records])
        return (
            f"PaperRun({self.world_size:,} ranks on {self.cluster.name}, recorded: {ranks}; "
            f"step {format_time_s(self.step_s)}, MFU {self.mfu_fraction:.0%}, "
            f"peak {format_bytes(most)}, which {room} {gpu.name} with {format_bytes(gpu.memory_bytes)})"
        )


def cluster_of(cluster: Cluster | str, world_size: int) -> Cluster:
    """The cluster of this name, with room for so many ranks.

    Raises:
        ValueError: there is no such cluster, or it has too few GPUs.
    """
    found = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
    if world_size > found.world_size:
        raise ValueError(f"{found.name} has {found.world_size} GPUs; {world_size} ranks do not fit on it")
    return found
