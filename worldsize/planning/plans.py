"""The plans that fit, cheapest first, and the number of others dropped for each reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from worldsize.planning import bounds, memory_estimate
from worldsize.planning.layout import Plan
from worldsize.published import RATIO_ERROR_FRACTION, SERIAL, PublishedRange, find_range
from worldsize.units import format_bytes, format_times_s

if TYPE_CHECKING:
    from worldsize.draw import Table

STATES = "weights, gradients and optimizer state alone are more than a GPU's memory"
ACTIVATIONS = "with the activations it is more than a GPU's memory"
TOTAL = "it is more than a GPU's memory, by your own memory function"
_NUM_SHOWN = 10
_SERIAL_NOTE = (
    "A step here is each resource at its peak, one after the other. Published programs took longer: their range is "
    "beside it, where enough programs of the kind were compared.",
)
_FIELDS = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "num_chunks", "recompute", "zero_stage")


class PricedPlan(NamedTuple):
    """A plan with its cost: the seconds of a step, their named parts if there are, and the bytes that it holds.

    With `is_serial`, `step_s` is the serial time, which orders plans but is shorter than any published step.
    """

    plan: Plan
    step_s: float
    parts: Mapping[str, float]
    held_bytes: float
    is_serial: bool = False

    @property
    def mfu_fraction(self) -> float:
        """The MFU: the model's flops as a fraction of the GPUs' 16-bit peak, without recomputation.

        It is nan for a serial time, which is not a step: `mfu_range_fraction` has the MFU of published steps.
        """
        return math.nan if self.is_serial else _mfu_fraction(self.plan, self.step_s)

    @property
    def step_range_s(self) -> tuple[float, float] | None:
        """The least and the most seconds that published programs of this kind lead to expect from a serial time.

        It is None if none was compared, and for a cost of your own.
        """
        found = _published(self.plan) if self.is_serial else None
        return found and found.around(self.step_s)

    @property
    def mfu_range_fraction(self) -> tuple[float, float] | None:
        """The least and the greatest MFU, like `step_range_s`."""
        ends = self.step_range_s
        return ends and (_mfu_fraction(self.plan, ends[1]), _mfu_fraction(self.plan, ends[0]))


class Plans(Sequence[PricedPlan]):
    """All plans that fit, the cheapest first; `not_legal` counts layouts by reason, `not_fitting` plans by reason.

    Notebooks show the best layouts as a table.
    """

    def __init__(
        self,
        priced: Sequence[PricedPlan],
        not_legal: Mapping[str, int],
        not_fitting: Mapping[str, int],
        dtype: str = "",
        is_memory_estimated: bool = True,
    ) -> None:
        self._priced, self.not_legal, self.not_fitting, self.dtype = priced, not_legal, not_fitting, dtype
        self._is_memory_estimated, self._is_serial = is_memory_estimated, priced[0].is_serial

    def __len__(self) -> int:
        return len(self._priced)

    @overload
    def __getitem__(self, index: int) -> PricedPlan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PricedPlan]: ...
    def __getitem__(self, index: int | slice) -> PricedPlan | Sequence[PricedPlan]:
        return self._priced[index]

    @property
    def best(self) -> Plan:
        """The cheapest plan."""
        return self._priced[0].plan

    @cached_property
    def layouts(self) -> list[PricedPlan]:
        """The cheapest plan of each (tp, pp, dp, cp, ep), the cheapest first."""
        first: dict[tuple[int, ...], PricedPlan] = {}
        for one in self._priced:
            first.setdefault(_layout(one.plan), one)
        return list(first.values())

    def cheapest(self, **sizes: Any) -> PricedPlan:
        """The cheapest plan with these fields: `tp=8, recompute="full"`.

        Raises:
            ValueError: no plan that fits has them.
        """
        if unknown := [name for name in sizes if name not in _FIELDS]:
            raise ValueError(f"a plan has no {unknown[0]!r}; it has {', '.join(_FIELDS)}")
        for one in self._priced:
            if all(getattr(one.plan, name) == value for name, value in sizes.items()):
                return one
        named = ", ".join(f"{name} {value}" for name, value in sizes.items())
        call = ", ".join(f"{name}={value!r}" for name, value in sizes.items())
        raise ValueError(f"no plan here has {named}; ws.plan(..., {call}) says whether such a plan is legal and fits")

    def place(self, **sizes: Any) -> int:
        """Return the rank, from 1, of the cheapest plan with these fields among the other layouts' cheapest plans.

        Raises:
            ValueError: no plan that fits has them.
        """
        mine = self.cheapest(**sizes)
        others = (priced for priced in self.layouts if _layout(priced.plan) != _layout(mine.plan))
        return 1 + sum(priced.step_s < mine.step_s for priced in others)

    def table(self, num_rows: int = _NUM_SHOWN, **marked: Any) -> Table:
        """Tabulate the best layouts' cheapest plans, highlighting the cheapest plan with the fields in `marked`."""
        from worldsize import draw

        shown = list(enumerate(self.layouts[:num_rows], start=1))
        if marked and (mine := self.cheapest(**marked)) not in [one for _, one in shown]:
            shown.append((self.place(**marked), mine))
        rows = [self._row(place, one) for place, one in shown]
        numbers = [number for number, (_, one) in enumerate(shown) if marked and one == mine]
        plan = self.best
        cost = "their serial time at peak rates" if self._is_serial else "your cost"
        title = (
            f"Best layouts by {cost}: {plan.model.name} on {plan.cluster.world_size:,} GPUs of {plan.cluster.name}, "
            f"{plan.global_batch:,} sequences of {plan.length:,} tokens (computed)"
        )
        return draw.table(rows, title, self.note, numbers)

    @property
    def note(self) -> str:
        """Say how many plans there were, and how many were dropped for each reason."""
        num_plans, capacity = len(self) + sum(self.not_fitting.values()), self.best.cluster.gpu.memory_bytes
        lines = [
            f"{len(self):,} of {_count(num_plans, 'legal plan')} fit in {format_bytes(capacity)}, "
            f"in {_count(len(self.layouts), 'layout')}, each shown by its cheapest plan.",
            *(_SERIAL_NOTE if self._is_serial else ()),
            f"The cheapest {self._describe_step()}",
            *self._equals(),
        ]
        if self._is_memory_estimated:
            margin = memory_estimate.margin(self._priced[0].held_bytes, capacity)
            lines += [f"The cheapest {margin}."] if margin else [memory_estimate.FITS]
            lines += self._with_room()
        lines += [f"Does not fit ({_count(number, 'plan')}): {reason}." for reason, number in _sorted(self.not_fitting)]
        lines += [f"Not legal ({_count(number, 'layout')}): {reason}." for reason, number in _sorted(self.not_legal)]
        return "\n".join(lines)

    def _describe_step(self) -> str:
        cheapest = self._priced[0]
        if cheapest.step_range_s:
            return f"would take {format_times_s(*cheapest.step_range_s)}: {_published(cheapest.plan)}."
        return bounds.describe_step(cheapest.step_s, cheapest.plan, self.dtype)

    def _with_room(self) -> list[str]:
        """Name the cheapest plan whose memory is "yes", unless it is the first."""
        capacity = self.best.cluster.gpu.memory_bytes
        room = next((one for one in self._priced if memory_estimate.fits(one.held_bytes, capacity) == "yes"), None)
        if room is None:
            return [f'No plan would fit at {memory_estimate.GREATEST_PEAK} times its estimate ("yes").']
        if room is self._priced[0]:
            return []
        slower = room.step_s / self._priced[0].step_s - 1
        return [
            f'The cheapest that would fit even at {memory_estimate.GREATEST_PEAK} times its estimate ("yes") is '
            f"{room.plan}, {slower:.1%} slower."
        ]

    def _equals(self) -> list[str]:
        """Say how many layouts are too near the cheapest to be told apart from it, if there are any."""
        most_s = (1 + RATIO_ERROR_FRACTION) * self._priced[0].step_s
        num_equal = sum(one.step_s <= most_s for one in self.layouts)
        if num_equal == 1:
            return []
        return [
            f"The first {num_equal} layouts differ by at most {RATIO_ERROR_FRACTION:.0%}, too little to call one "
            "the best: most ratios of two published steps are farther than that from the ratio on paper."
        ]

    def _row(self, place: int, one: PricedPlan) -> dict[str, Any]:
        plan, capacity = one.plan, one.plan.cluster.gpu.memory_bytes
        slower = one.step_s / self._priced[0].step_s - 1
        return {
            "place": place,
            **{axis: getattr(plan, axis) for axis in ("tp", "pp", "dp", "cp")},
            **({"ep": plan.ep} if plan.model.num_experts > 1 else {}),
            "micro-batch": plan.micro_batch,
            "chunks": plan.num_chunks,
            "recompute": plan.recompute,
            "ZeRO": plan.zero_stage,
            **({"fits": memory_estimate.fits(one.held_bytes, capacity)} if self._is_memory_estimated else {}),
            "step_s": one.step_s,
            "slower_fraction": round(slower, 3),
            **(_published_row(one) if self._is_serial else {"mfu_fraction": one.mfu_fraction}),
            "held_bytes": one.held_bytes,
            **one.parts,
        }

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def _published(plan: Plan) -> PublishedRange | None:
    """How many times as long as a plan's serial time programs of its kind took."""
    return find_range(SERIAL, plan.family, plan.cluster.gpu.architecture, plan.cluster.world_size)


def _published_row(one: PricedPlan) -> dict[str, str]:
    """The step and the MFU of programs of a plan's kind, for a plan that is priced by its serial time."""
    if one.step_range_s is None or one.mfu_range_fraction is None:
        return {"published": "not compared", "mfu": ""}
    return {
        "published": format_times_s(*one.step_range_s),
        "mfu": " to ".join(f"{end:.0%}" for end in one.mfu_range_fraction),
    }


def _mfu_fraction(plan: Plan, step_s: float) -> float:
    flops = plan.model.flops(plan.num_tokens, plan.length)
    _, peak = bounds.peak_flops_per_s(plan.cluster.gpu)
    return flops / (step_s * plan.cluster.world_size * peak)


def _layout(plan: Plan) -> tuple[int, ...]:
    return plan.tp, plan.pp, plan.dp, plan.cp, plan.ep


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
