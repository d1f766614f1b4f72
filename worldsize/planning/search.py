"""Enumeration of all legal plans, those that fit, and their costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from worldsize import hardware
from worldsize.hardware import Cluster
from worldsize.models.shapes import Shape, shape
from worldsize.planning.bounds import refuse_impossible
from worldsize.planning.layout import RECOMPUTES, ZERO_STAGES, Plan, stage_layers
from worldsize.planning.legality import divisors, meshes, why_not
from worldsize.planning.memory_estimate import held
from worldsize.planning.plans import ACTIVATIONS, STATES, TOTAL, Plans, PricedPlan
from worldsize.units import format_bytes

Cost: TypeAlias = Callable[[Plan], float | Mapping[str, float]]
Choice: TypeAlias = int | Iterable[int] | None
_TOKENS = 4 * 2**20  # of a step, as of Llama 2: Touvron et al. 2023, arXiv 2307.09288, section 2.1


def plan(
    model: Shape | str,
    cluster: Cluster | str,
    cost: Cost | None = None,
    *,
    global_batch: int | None = None,
    length: int | None = None,
    memory: Callable[[Plan], float] | None = None,
    dtype: str = "",
    dp: Choice = None,
    tp: Choice = None,
    pp: Choice = None,
    cp: Choice = None,
    ep: Choice = None,
    micro_batch: Choice = None,
    num_chunks: Choice = None,
    recompute: str | Iterable[str] | None = None,
    zero_stage: Choice = None,
) -> Plans:
    """Find every legal plan that fits for steps of `global_batch` sequences, cheapest first.

    `cost` is your own function from a `Plan` to the seconds of a step, or to a mapping of named parts that add up to
    them, such as `{"compute_s": 3.1, "bubble_s": 0.4}`. Without it, plans are sorted by their serial time, each
    resource at its peak, one after the other, and show how many times as long published programs took. `length` is the
    tokens in a sequence, by default the model's context; `global_batch` is by default what has 4 million tokens, and at
    most twice that, or as many sequences as the odd part of the number of GPUs.
    `memory` is your own function from a `Plan` to the bytes on its fullest GPU; the default is an estimate. A cost
    below what the hardware allows is refused; `dtype` is that of the products, by default 16 bits.

    The other arguments restrict the search to one or several values: `tp=8, recompute=("none", "full")`. By default tp
    stays within a node; a tp that you name may span nodes. Without a cost function cp and ep are 1 unless you name
    them, because the serial time does not count what they send.

    Raises:
        ValueError: a name or number is invalid, no plan is legal and fits, or a cost is not a number or impossible.
    """
    if cost is None:
        cp, ep = 1 if cp is None else cp, 1 if ep is None else ep
    wanted = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro_batch": micro_batch}
    wanted |= {"num_chunks": num_chunks, "recompute": recompute, "zero_stage": zero_stage}
    model = shape(model) if isinstance(model, str) else model
    cluster = hardware.cluster(cluster) if isinstance(cluster, str) else cluster
    length = model.context_length if length is None else length
    _require_whole("length", length)
    global_batch = usual_batch(cluster.world_size, length) if global_batch is None else global_batch
    _require_whole("global_batch", global_batch)
    if cost is not None and not callable(cost):
        raise ValueError(f"cost is {cost!r}; give a function of a Plan that returns the seconds of a step, or none")
    if dtype and dtype not in cluster.gpu.peak_flops_per_s:
        known = ", ".join(map(repr, cluster.gpu.peak_flops_per_s))
        raise ValueError(f"dtype is {dtype!r}; the {cluster.gpu.name} multiplies in {known}")
    search = Search(model, cluster, global_batch, length, Restrictions.of(wanted), memory)
    if cost is None:
        from worldsize.planning import serial  # out of a student's reach where a lab asks for a cost

        return search.priced(lambda one: serial.parts_s(one, dtype), dtype, is_serial=True)
    return search.priced(cost, dtype)


def _require_whole(name: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; give a whole number of 1 or more")


def usual_batch(num_gpus: int, length: int) -> int:
    """The fewest sequences with `_TOKENS` tokens that replicas of many numbers share evenly."""
    number = num_gpus // (num_gpus & -num_gpus)  # the odd part of the number of GPUs, times a power of two
    while number * length < _TOKENS:
        number *= 2
    return number


@dataclass(frozen=True)
class Restrictions:
    """What the caller restricts each field of a plan to; a field that is not named is free."""

    allowed: Mapping[str, frozenset[Any]]

    @classmethod
    def of(cls, wanted: Mapping[str, Any]) -> Restrictions:
        """The restrictions among these, each a value, several, or None.

        Raises:
            ValueError: a field is left without values, or with an impossible one.
        """
        known = {"recompute": RECOMPUTES, "zero_stage": ZERO_STAGES}
        allowed: dict[str, frozenset[Any]] = {}
        for name, value in wanted.items():
            if value is None:
                continue
            values = frozenset([value] if isinstance(value, str) or not isinstance(value, Iterable) else value)
            wrong = [one for one in values if not _is_possible(one, known.get(name))]
            if wrong or not values:
                right = " or ".join(map(repr, known[name])) if name in known else "a whole number of 1 or more"
                raise ValueError(f"{name} is {value!r}; give {right}, one or several, or leave it out to try all")
            allowed[name] = values
        return cls(allowed)

    def __str__(self) -> str:
        return ", ".join(f"{name} {_or(values)}" for name, values in self.allowed.items())

    def allow(self, name: str, value: Any) -> bool:
        return name not in self.allowed or value in self.allowed[name]

    def among(self, name: str, values: Iterable[Any]) -> list[Any]:
        return [value for value in values if self.allow(name, value)]


def _is_possible(value: Any, known: tuple[Any, ...] | None) -> bool:
    if known is not None:
        return value in known
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _or(values: Iterable[Any]) -> str:
    return " or ".join(map(str, sorted(values)))


class Search:
    """The search for a model's plans on a cluster, which counts why layouts and plans are dropped."""

    def __init__(
        self,
        model: Shape,
        cluster: Cluster,
        global_batch: int,
        length: int,
        choices: Restrictions,
        memory: Callable[[Plan], float] | None = None,
    ) -> None:
        self.model, self.cluster, self.global_batch, self.length = model, cluster, global_batch, length
        self.choices, self.memory = choices, memory
        self.not_legal: Counter[str] = Counter()  # layouts
        self.not_fitting: Counter[str] = Counter()  # plans
        self.least_bytes = math.inf

    def priced(self, cost: Cost, dtype: str = "", is_serial: bool = False) -> Plans:
        """Price the plans that fit; with `is_serial`, `cost` is that of `planning.serial`.

        Raises:
            ValueError: no plan fits, or a cost is not a number or impossible.
        """
        found = [PricedPlan(one, *price(cost, one, dtype), held_bytes, is_serial) for one, held_bytes in self.fitting()]
        if not found:
            raise ValueError(self._nothing())
        found.sort(key=lambda one: one.step_s)
        return Plans(found, dict(self.not_legal), dict(self.not_fitting), dtype, self.memory is None)

    def fitting(self) -> Iterator[tuple[Plan, float]]:
        """Yield the legal plans that fit, each with the bytes that it holds."""
        capacity_bytes = self.cluster.gpu.memory_bytes
        for one in self.legal():
            if self.memory is None:
                parts = held(one)
                held_bytes, reason = parts.total_bytes, STATES if parts.states_bytes > capacity_bytes else ACTIVATIONS
            else:
                held_bytes, reason = _number(self.memory(one), "memory", one, "bytes"), TOTAL
            self.least_bytes = min(self.least_bytes, held_bytes)
            if held_bytes > capacity_bytes:
                self.not_fitting[reason] += 1
            else:
                yield one, held_bytes

    def legal(self) -> Iterator[Plan]:
        """Yield every legal plan."""
        choices, is_tp_free = self.choices, "tp" in self.choices.allowed
        recomputes = choices.among("recompute", RECOMPUTES)
        for mesh in meshes(self.cluster.world_size):
            sizes = dict(zip(("tp", "cp", "dp", "pp"), mesh, strict=True))
            if not all(choices.allow(name, size) for name, size in sizes.items()):
                continue
            reason = why_not(mesh, self.model, self.cluster, self.global_batch, self.length, is_tp_free)
            if reason:
                self.not_legal[reason] += 1
                continue
            zero_stages = choices.among("zero_stage", ZERO_STAGES if sizes["dp"] * sizes["cp"] > 1 else (0,))
            eps = choices.among("ep", divisors(math.gcd(self.model.num_experts, sizes["dp"] * sizes["cp"])))
            shares = self._shares(sizes["dp"], sizes["pp"])
            for (micro_batch, num_chunks), ep, recompute, zero_stage in product(shares, eps, recomputes, zero_stages):
                yield Plan(
                    model=self.model,
                    cluster=self.cluster,
                    global_batch=self.global_batch,
                    length=self.length,
                    **sizes,
                    ep=ep,
                    micro_batch=micro_batch,
                    num_chunks=num_chunks,
                    recompute=recompute,
                    zero_stage=zero_stage,
                )

    def _shares(self, dp: int, pp: int) -> Iterator[tuple[int, int]]:
        """Yield every (micro_batch, num_chunks); an interleaved pipeline needs a multiple of pp micro-batches."""
        per_replica = self.global_batch // dp
        most_chunks = -(-(self.model.num_layers + 2) // pp) if pp > 1 else 1
        chunks = [number for number in range(1, most_chunks + 1) if stage_layers(self.model.num_layers, pp, number)]
        for micro_batch in self.choices.among("micro_batch", divisors(per_replica)):
            for num_chunks in self.choices.among("num_chunks", chunks):
                if num_chunks == 1 or per_replica // micro_batch % pp == 0:
                    yield micro_batch, num_chunks

    def _nothing(self) -> str:
        """Explain why there is no plan, and what to try."""
        what = f"no plan for {self.model.name} on {self.cluster.name}"
        tried = f" with {self.choices}" if self.choices.allowed else ""
        if self.not_fitting:
            has = format_bytes(self.cluster.gpu.memory_bytes)
            return (
                f"{what}{tried} fits in memory: the smallest of {sum(self.not_fitting.values()):,} legal plans holds "
                f"{format_bytes(self.least_bytes)}, and the {self.cluster.gpu.name} has {has}; take more GPUs, shorter "
                "sequences, or lift some of your restrictions"
            )
        reasons = "; ".join(
            f"{reason} ({number:,} layout{'' if number == 1 else 's'})"
            for reason, number in self.not_legal.most_common()
        )
        return (
            f"{what}{tried} is legal on its {self.cluster.world_size:,} GPUs: "
            f"{reasons or 'no legal layout has these sizes'}; "
            "choose sizes whose product is the number of GPUs and that divide what they shard"
        )


def price(cost: Cost, one: Plan, dtype: str = "") -> tuple[float, Mapping[str, float]]:
    """Return the seconds of a step, and their parts if the cost function names them.

    Raises:
        ValueError: the cost is not a number.
        Impossible: it is less than the hardware allows, with products in `dtype`, by default 16 bits.
    """
    step_s, parts = _asked(cost, one)
    refuse_impossible(step_s, one, dtype)
    return step_s, parts


def _asked(cost: Cost, one: Plan) -> tuple[float, Mapping[str, float]]:
    try:
        found = cost(one)
    except Exception as error:
        error.add_note(f"This was the cost of {one!r}.")
        raise
    if not isinstance(found, Mapping):
        return _number(found, "cost", one, "seconds"), {}
    parts = {str(name): _number(value, f"cost's part {name!r}", one, "seconds") for name, value in found.items()}
    return sum(parts.values()), parts


def _number(value: Any, what: str, one: Plan, unit: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or number < 0:
        raise ValueError(f"{what} is {value!r} for {one}; it must be a number of {unit}, 0 or more")
    return number
