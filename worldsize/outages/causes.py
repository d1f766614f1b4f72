"""Published causes and rates of node failures, and seeded failures drawn at these rates."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from pathlib import Path

_CSV = Path(__file__).parents[1] / "data" / "failures.csv"
_HOUR_S, _DAY_S = 3600, 86400


@dataclass(frozen=True)
class Cause:
    """One cause of failures: its rate per node and hour, and the seconds for which the node is then away.

    `away_s` is 0 if the job may restart on the same node, or on one that is ready.
    """

    name: str
    per_node_hour: float
    away_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.per_node_hour < math.inf:
            raise ValueError(f"{self.name}: per_node_hour is {self.per_node_hour}; it must be a number above 0")
        if not 0 <= self.away_s < math.inf:
            raise ValueError(f"{self.name}: away_s is {self.away_s}; it must be a number of seconds, 0 or more")


@dataclass(frozen=True)
class NodeFailure:
    """One failure of one node, `time_s` seconds into the run; the node is back `away_s` later, at infinity never."""

    time_s: float
    node: int
    cause: str
    away_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.time_s < math.inf or not self.away_s >= 0:
            raise ValueError(f"{self}: time_s and away_s must be seconds, 0 or more")
        if not isinstance(self.node, Integral):
            raise ValueError(f"{self}: node must be a whole number")


@cache
def published(source: str = "Llama 3") -> tuple[Cause, ...]:
    """Return a source's unexpected interruptions as rates per node, most frequent first.

    Raises:
        ValueError: the source is unknown.
    """
    with _CSV.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [_cause(row) for row in rows if row["source"] == source]
    if not found:
        raise ValueError(
            f"no failures are known from {source!r}; choose one of {', '.join(sorted({r['source'] for r in rows}))}"
        )
    return tuple(sorted(found, key=lambda cause: -cause.per_node_hour))


def draw(causes: Sequence[Cause], num_nodes: int, span_s: float, seed: int = 0) -> list[NodeFailure]:
    """The failures of `num_nodes` nodes within `span_s`, in order of time; the same seed gives the same ones.

    Each cause strikes each node at random, at a constant rate and independently of all others (a Poisson process).

    Raises:
        ValueError: `num_nodes` is below 1, or `span_s` is not positive.
    """
    if not isinstance(num_nodes, Integral) or num_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes!r}; it must be a whole number, 1 or more")
    if not 0 < span_s < math.inf:
        raise ValueError(f"span_s is {span_s}; it must be a number of seconds above 0")
    if not causes:
        return []
    chance = random.Random(seed)
    rates = [cause.per_node_hour for cause in causes]
    per_s = num_nodes * sum(rates) / _HOUR_S
    failures: list[NodeFailure] = []
    time_s = chance.expovariate(per_s)
    while time_s < span_s:
        cause = chance.choices(causes, rates)[0]
        failures.append(NodeFailure(time_s, chance.randrange(num_nodes), cause.name, cause.away_s))
        time_s += chance.expovariate(per_s)
    return failures


def _cause(row: dict[str, str]) -> Cause:
    node_hours = int(row["num_gpus"]) / int(row["gpus_per_node"]) * float(row["days"]) * _DAY_S / _HOUR_S
    return Cause(row["cause"], int(row["count"]) / node_hours, source=f"{row['source']}: {row['source_ref']}")
