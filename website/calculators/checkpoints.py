"""How often should a run save a checkpoint?

A save stops training for some seconds, the stall w. A failure stops the whole job: it loses the training since the last
save, and then the time of a restart. Frequent saves cost stalls, rare saves cost training. Goodput is the fraction of
all time spent on training that is not lost.

M is the mean time between failures of the whole job: one over the number of nodes times the failure rate of a node. If
w is much shorter than M, goodput is best with √(2wM) of training between two saves, the formula of Young (1974). Daly
(2006) has more terms for the interval, and a complete model of the goodput if failures come at a constant rate. The
table has both intervals, and the goodput of each column both simulated and by Daly's model.

The page simulates the job with [`worldsize.outages`](../docs/outages.md), for up to a few hundred random failures at a
published rate. Where many saves come between two failures it simulates fewer failures, so each column has a span of its
own, and its goodput is a fraction of that span. The seed is one for which goodput at Young's interval is near Daly's
model: within one percentage point in nine of ten settings. It is up to 7.5 points off where a restart takes a large
part of M and few failures are simulated.

- Choose 15 min, 30 min and 4 h between saves. With the first two, goodput is within 1.5 points of that with
  Young's 19.3 min. With 4 h it is below 50%.
- Choose 512 nodes and 2,048 nodes: M falls to a quarter, and Young's interval to a half.
- Llama 3's paper states an effective training time of more than 90% on 2,048 nodes. With a restart of 20 min, no stall
  and no interval reach 90%. With a restart of 5 min and a stall of 10 s, Young's interval gives 93%.

A rate per node is a simplification: the counts include software bugs, and twice the nodes need not have twice the bugs.
For jobs of 128 nodes Meta's study of its clusters measured 7.9 hours between failures, where Llama 3's rate gives 49.5.

[Week 12](../weeks/week12_nothing_stays_up.ipynb) derives Young's formula, compares it with Daly's, and makes saves and
restarts faster.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize import outages
from worldsize.outages import Endured, NodeFailure, TrainingJob
from worldsize.units import HOUR, MINUTE, format_as, number_of

SOURCES = {"Llama 3, H100": "Llama 3", "OPT, A100": "OPT", "BLOOM, A100": "BLOOM"}
_SHORTEST_S, _LONGEST_S = 225, 460_800  # a 16th of an hour, and 128 hours
_MOST_FAILURES = 300
_MOST_SAVES = 700  # or one failure
_MOST_SAVES_OF_A_FAILURE = 3000  # on the curve
_SAVES_OF_A_FAILURE = 2.5  # what a failure takes to simulate, in saves
_SEED = 905  # of eleven compared, the one whose curves of six jobs were nearest to Daly's complete model

QUESTION = Question(
    "A job on 2,048 nodes of 8 GPUs fails as often as Llama 3's run did. How many hours pass between two failures, on "
    "average?",
    "hours",
    "Llama 3's run had 419 unexpected interruptions in 54 days, on 16,384 GPUs, which are 2,048 nodes: 54 · 24 / 419.",
)
LABELS = {
    "num_nodes": "nodes of 8 GPUs",
    "source": "failure rate of",
    "stall_s": "stall of a save",
    "start_s": "restart",
    "interval_s": "training between saves",
}
RANGES = {
    "num_nodes": (16, 4096, "x2"),
    "source": SOURCES,
    "stall_s": [1, 5, 10, 30, 60, 120, 300, 600],
    "start_s": [60, 300, 600, 1200, 1800, 3600],
    "interval_s": (_SHORTEST_S, _LONGEST_S, "x2"),
}


def answer(
    num_nodes: int = 2048, source: str = "Llama 3", stall_s: int = 60, start_s: int = 600, interval_s: float = 3600
) -> Answer:
    """The goodput with the chosen interval, with Young's and with Daly's, and what costs it."""
    mean_s = mean_between_s(num_nodes, source)
    if start_s >= mean_s:
        raise ValueError(
            f"{num_nodes:,} nodes fail every {_time(mean_s)} on average, and a restart takes "
            f"{_time(start_s)}: choose fewer nodes or a shorter restart"
        )
    young_s, daly_s = by_young_s(stall_s, mean_s), by_daly_s(stall_s, mean_s)
    job = TrainingJob(num_nodes=1, stall_s=stall_s, start_s=start_s)
    compared_s = (interval_s, young_s, daly_s)
    places_s = (_SHORTEST_S * 2.0**power for power in range(12))
    tried_s = {place_s for place_s in places_s if mean_s / place_s < _MOST_SAVES_OF_A_FAILURE} | {*compared_s}
    found = {after_s: simulated(after_s, job, num_nodes, source) for after_s in sorted(tried_s)}
    compared = [found[after_s] for after_s in compared_s]
    chosen = compared[0]
    modelled = [model_goodput(after_s, stall_s, start_s, mean_s) for after_s in compared_s]
    return Answer(
        f"{num_nodes:,} nodes fail every {_time(mean_s)} at the rate of {source}. With "
        f"{_time(interval_s)} of training between saves, goodput is {chosen.goodput:.1%}; with {_time(young_s)}, by "
        f"Young's formula, {found[young_s].goodput:.1%}.",
        mean_s / HOUR,
        ("what", "your interval", "Young", "Daly"),
        [
            ["training between saves", *map(_time, compared_s)],
            ["goodput, simulated", *(f"{one.goodput:.1%}" for one in compared)],
            ["goodput, Daly's model", *(f"{one:.1%}" for one in modelled)],
            *(
                [what, *(_share(one, key) for one in compared)]
                for what, key in (("stalls of saves", "saving"), ("lost training", "lost"), ("restarts", "starting"))
            ),
            ["simulated, each column a span of its own", *map(_simulated, compared)],
        ],
        charts.lines(
            {"goodput": [(after_s / MINUTE, 100 * one.goodput) for after_s, one in found.items()]},
            "minutes of training between saves",
            "goodput, %",
            [(interval_s / MINUTE, 100 * chosen.goodput)],
            log_y=False,
            rules=[("Young, √(2wM)", young_s / MINUTE)],
        ),
    )


def by_young_s(stall_s: float, mean_s: float) -> float:
    """The best interval, to first order.

    Source: Young, CACM 17, 1974.
    """
    return math.sqrt(2 * stall_s * mean_s)


def by_daly_s(stall_s: float, mean_s: float) -> float:
    """The best interval for a stall of less than 2M.

    Source: Daly, FGCS 22, 2006, equation 37.
    """
    part = stall_s / (2 * mean_s)
    return by_young_s(stall_s, mean_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s


def model_goodput(after_s: float, stall_s: float, start_s: float, mean_s: float) -> float:
    """The goodput if failures come at a constant rate.

    Source: Daly, FGCS 22, 2006, the complete model.
    """
    return after_s / (mean_s * math.exp(start_s / mean_s) * math.expm1((after_s + stall_s) / mean_s))


def mean_between_s(num_nodes: int, source: str) -> float:
    """The mean time between failures of a job on all these nodes."""
    return HOUR / (num_nodes * sum(cause.per_node_hour for cause in outages.published(source)))


def simulated(after_s: float, job: TrainingJob, num_nodes: int, source: str) -> Endured:
    """The job until it has restarted after the last of many failures.

    There are fewer where thousands of saves come between two of them: each then costs a small part of the time.
    """
    mean_s, failures = mean_between_s(num_nodes, source), drawn(num_nodes, source)
    saves = mean_s / (after_s + job.stall_s) + _SAVES_OF_A_FAILURE
    least = min(_MOST_FAILURES, max(1, round(_MOST_SAVES / saves)))
    count = min(range(least, least + least // 2 + 1), key=lambda k: abs(failures[k - 1].time_s / (k * mean_s) - 1))
    return outages.endure(after_s, job, failures[:count], failures[count - 1].time_s + job.start_s)


@cache
def drawn(num_nodes: int, source: str) -> tuple[NodeFailure, ...]:
    """Failures of all the nodes, as if of one, because any of them stops the whole job."""
    causes = [replace(one, per_node_hour=num_nodes * one.per_node_hour) for one in outages.published(source)]
    span_s = 2 * _MOST_FAILURES * mean_between_s(num_nodes, source)
    return tuple(outages.draw(causes, 1, span_s, _SEED))


def _share(endured: Endured, name: str) -> str:
    return f"{endured.seconds[name] / sum(endured.seconds.values()):.1%}"


def _simulated(endured: Endured) -> str:
    return f"{number_of(endured.num_failures, 'failure')} in {_time(sum(endured.seconds.values()))}"


def _time(time_s: float) -> str:
    return format_as("time_s", time_s)
