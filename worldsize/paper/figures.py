"""The time, memory and other figures of a step on paper, and their comparison with a formula."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from worldsize import published
from worldsize.hardware import Cluster
from worldsize.launch.reports import cures
from worldsize.published import PEAK, STEP, PublishedRange
from worldsize.units import format_as, format_bytes, format_time_s

if TYPE_CHECKING:
    from worldsize.draw import Table


class StepFigures:
    """The figures of a step on a cluster, and what follows from them."""

    cluster: Cluster
    tokens_per_step: int | None

    @property
    @abstractmethod
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    @abstractmethod
    def step_s(self) -> float:
        """Seconds of a training step."""

    @property
    @abstractmethod
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in a step."""

    @property
    @abstractmethod
    def peak_bytes(self) -> float:
        """The most bytes that a rank's tensors hold."""

    @property
    @abstractmethod
    def peak_by_kind(self) -> Mapping[str, float]:
        """The bytes by kind at the peak of the recorded rank that holds most."""

    @property
    def no_peak(self) -> str:
        """Why there is no `peak_bytes`; empty if there is one."""
        return ""

    @abstractmethod
    def flops(self, is_useful: bool = True) -> float:
        """Return the flops of a rank's step; useful flops exclude recomputation."""

    @property
    @abstractmethod
    def without_flops(self) -> Mapping[str, int]:
        """The number of calls, by name, of custom operators priced only by the memory they move."""

    @property
    @abstractmethod
    def family(self) -> str:
        """The family of layouts, as in `worldsize.published`; empty if no published program is of it."""

    @property
    @abstractmethod
    def step_parts_s(self) -> Mapping[str, float]:
        """Seconds of the step of the slowest recorded rank: compute, exposed communication, and bubble, the rest."""

    @property
    def step_range_s(self) -> tuple[float, float] | None:
        """The least and the most seconds that published programs of this kind lead to expect; None without any."""
        found = self._published(STEP)
        return found and found.around(self.step_s)

    @property
    def peak_range_bytes(self) -> tuple[float, float] | None:
        """The least and the most bytes at the peak, like `step_range_s`."""
        found = self._published(PEAK)
        return found and found.around(self.peak_bytes)

    @property
    def mfu_range_fraction(self) -> tuple[float, float] | None:
        """The least and the greatest MFU, like `step_range_s`."""
        found = self._published(STEP)
        return found and (self.mfu_fraction / found.high, self.mfu_fraction / found.low)

    def _published(self, figure: str) -> PublishedRange | None:
        architecture = self.cluster.gpu.architecture
        return published.find_range(figure, self.family, architecture, self.world_size, self.hfu_fraction)

    @property
    def fits(self) -> bool:
        """Whether every rank's tensors, at `peak_bytes`, fit in its GPU's memory.

        It is True also where the upper end of `peak_range_bytes` does not fit, and a printed run says "may not fit".

        Raises:
            ValueError: there is no peak, for the reason in `no_peak`.
        """
        return self.peak_bytes <= self.cluster.gpu.memory_bytes

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of a step per second and GPU.

        Raises:
            ValueError: the number of tokens was not given.
        """
        if self.tokens_per_step is None:
            raise ValueError(
                "the program does not say how many tokens a step has: pass tokens_per_step, of all ranks, to ws.paper"
            )
        if not self.step_s:
            raise ValueError("the step takes no time: the program computes and sends nothing")
        return self.tokens_per_step / self.step_s / self.world_size

    @property
    def mfu_fraction(self) -> float:
        """The useful flops of a step divided by the GPUs' bfloat16 peak over the same time.

        Useful flops are those of matmuls and attention (half for causal attention), without recomputation in backward.
        Source of the term: Chowdhery et al. 2022 (PaLM), appendix B, who count causal attention in full.
        """
        return self._fraction(self.flops())

    @property
    def hfu_fraction(self) -> float:
        """The hardware FLOP utilisation: like `mfu_fraction`, but including recomputation."""
        return self._fraction(self.flops(is_useful=False))

    def _fraction(self, flops: float) -> float:
        peaks = self.cluster.gpu.peak_flops_per_s
        peak = peaks.get("bfloat16") or peaks.get("float16") or max(peaks.values())
        return flops / self.step_s / peak if self.step_s else 0.0  # a program may compute nothing

    def compare(self, formula: Callable[..., Any] | Mapping[str, float], *args: Any) -> Table:
        """Compare a formula's figures with these: a table of both and of the formula's error.

        `formula(*args)` returns figures by name, such as `step_s`, `mfu_fraction`, `sent_bytes`, `peak_bytes`, or the
        peak's `weights_bytes` and `activations_bytes`; a single number takes the function's name.

        Raises:
            ValueError: it returns something else, or a figure that a run on paper does not have.
        """
        from worldsize import draw  # it draws with packages that a rank need not import

        given = formula if isinstance(formula, Mapping) else _by_name(formula, formula(*args))
        here = self.by_name()
        if not given or (unknown := given.keys() - here.keys()):
            what = f"a run on paper has no {', '.join(sorted(unknown))}" if given else "the formula returned no figures"
            raise ValueError(f"{what}; known figures: {', '.join(here)}")
        if no_number := next((name for name, value in given.items() if not isinstance(value, Real)), None):
            raise ValueError(
                f"a formula's figures must be numbers; its {no_number} is a {type(given[no_number]).__name__}"
            )
        rows = [
            {
                "figure": name.rpartition("_")[0].replace("_", " ") if name in here else name,
                "formula": format_as(name, value),
                "on paper": format_as(name, here[name]),
                "off": f"{100 * (value / here[name] - 1):+.1f}%" if here[name] else "",
            }
            for name, value in given.items()
        ]
        return draw.table(rows, title=f"A formula and the program, {self.world_size:,} ranks (on paper)")

    def by_name(self) -> dict[str, float]:
        """The figures by name."""
        found = {
            "step_s": self.step_s,
            "mfu_fraction": self.mfu_fraction,
            "hfu_fraction": self.hfu_fraction,
            "sent_bytes": self.sent_bytes,
        }
        if not self.no_peak:
            found["peak_bytes"] = self.peak_bytes
        if self.tokens_per_step is not None:
            found["tokens_per_s_per_gpu"] = self.tokens_per_s_per_gpu
        return found

    def described(self, what: str) -> str:
        """Describe the run in a sentence; `what` says what was recorded."""
        ranges = published.describe(self._published(STEP), self._published(PEAK))
        return (
            f"{self.world_size:,} ranks on {self.cluster.name}, {what}; "
            f"step {format_time_s(self.step_s)}{self._bound}, MFU {self.mfu_fraction:.0%}, "
            f"{self._room}; {ranges}{self._unpriced}{self._cure}"
        )

    @property
    def _room(self) -> str:
        """A phrase on the peak and whether it fits."""
        if self.no_peak:
            return f"peak unknown: {self.no_peak}"
        gpu = self.cluster.gpu
        room = "does not fit on" if not self.fits else "may not fit on" if self._may_be_full else "fits on"
        return f"peak {format_bytes(self.peak_bytes)}, which {room} {gpu.name} with {format_bytes(gpu.memory_bytes)}"

    @property
    def _may_be_full(self) -> bool:
        """Whether the upper end of the peak's range does not fit."""
        peaks = self.peak_range_bytes
        return peaks is not None and peaks[1] > self.cluster.gpu.memory_bytes

    @property
    def _cure(self) -> str:
        """A sentence on what helps where the peak does not fit."""
        if self.no_peak or (self.fits and not self._may_be_full):
            return ""
        cure = cures.FRAGMENTS if self.fits else cures.of_peak(self.peak_by_kind)
        return f". {cure}" if cure else ""

    @property
    def _bound(self) -> str:
        """A phrase that names the largest part of the step."""
        if not self.step_s:
            return ""
        name, seconds = max(self.step_parts_s.items(), key=lambda part: part[1])
        return f" ({seconds / self.step_s:.0%} {name})"

    @property
    def _unpriced(self) -> str:
        """A phrase that names the operators whose flops are not counted."""
        calls = [f"{number:,} of {name}" for name, number in self.without_flops.items()]
        return f"; without the flops of custom operators: {', '.join(calls)}" if calls else ""


def _by_name(formula: Callable[..., Any], value: Any) -> Mapping[str, float]:
    """Return a formula's figures by name; a single number takes the formula's name."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, Real):
        raise ValueError(f"a formula must return a number, or a dict of numbers by name; got {value!r}")
    return {formula.__name__: float(value)}
