"""The plans that fit, cheapest first, and the number of others dropped for each reason."""

from __future__ import annotations

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
    """A plan with its cost: the seconds of a step, their named parts if there are, and the bytes that it holds."""

    plan: Plan
    step_s: float
    parts: Mapping[str, float]
    held_bytes: float

    @property
    def mfu_fraction(self) -> float:
        """The MFU: the model's flops as a fraction of the GPUs' 16-bit peak, without recomputation."""
        plan = self.plan
        flops = plan.model.flops(plan.num_tokens, plan.length)
        _, peak = bounds.peak_flops_per_s(plan.cluster.gpu)
        return flops / (self.step_s * plan.cluster.world_size * peak)


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
        is_serial: bool = False,
    ) -> None:
        self._priced, self.not_legal, self.not_fitting, self.dtype = priced, not_legal, not_fitting, dtype
        self._is_memory_estimated, self._is_serial = is_memory_estimated, is_serial

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
        lines += [f"Does not fit ({_count(number, 'plan')}): {reason}." for reason, number in _sorted(self.not_fitting)]
        lines += [f"Not legal ({_count(number, 'layout')}): {reason}." for reason, number in _sorted(self.not_legal)]
        return "\n".join(lines)

    def _describe_step(self) -> str:
        cheapest = self._priced[0]
        if self._is_serial and (published := _published(cheapest.plan)):
            return f"would take {format_times_s(*published.around(cheapest.step_s))}: {published}."
        return bounds.describe_step(cheapest.step_s, cheapest.plan, self.dtype)

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
            "held_bytes": one.held_bytes,
            **({"fits": memory_estimate.fits(one.held_bytes, capacity)} if self._is_memory_estimated else {}),
            **one.parts,
            "step_s": one.step_s,
            "slower_fraction": round(slower, 3),
            **(_published_row(one) if self._is_serial else {"mfu_fraction": one.mfu_fraction}),
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
    published = _published(one.plan)
    if published is None:
        return {"published": "not compared", "mfu": ""}
    low_s, high_s = published.around(one.step_s)
    low, high = (one._replace(step_s=step_s).mfu_fraction for step_s in (high_s, low_s))
    return {"published": format_times_s(low_s, high_s), "mfu": f"{low:.0%} to {high:.0%}"}


def _layout(plan: Plan) -> tuple[int, ...]:
    return plan.tp, plan.pp, plan.dp, plan.cp, plan.ep


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
