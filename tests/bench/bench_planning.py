"""How many plans a second are tried and priced, and where the layouts that published runs chose come among them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from chosen_plans import ANYTHING, CHOSEN, LLAMA_3, TRILLION
from figures import Figure

import worldsize as ws
from worldsize.planning import Plan

_PER_S = 10_000
_PLACE = 5


def planning(scale: float) -> Iterator[Figure]:
    """Speed with a cost of a few lines, then the judge's places for published layouts; the tables are printed."""
    name, cluster = ("llama-3-405b", "h100-ndr-x2048") if scale else ("llama-3-8b", "dgx-h100")
    start_s = time.process_time()
    plans = ws.plan(name, cluster, _compute_and_bubble_s, global_batch=2048 if scale else 64)
    took_s = time.process_time() - start_s
    num_plans = len(plans) + sum(plans.not_fitting.values())
    how = f"{num_plans:,} plans of {name}, tried, filtered and sorted by a cost of five lines; processor time"
    yield Figure("plans", num_plans / took_s, "/s", "at least 10,000", num_plans / took_s >= _PER_S, how)

    chosen = CHOSEN if scale else [TRILLION]
    places = []
    for one in chosen:
        found = one.plans()
        place, slower = found.place(**one.layout), found.cheapest(**one.layout).step_s / found[0].step_s - 1
        places.append(place)
        print(f"\n{one.name}\n{found.table(5, **one.layout)}")
        has_goal = one in (TRILLION, LLAMA_3)
        how = f"of {len(found.layouts)} layouts that its software had; {100 * slower:.1f}% slower than the best"
        yield Figure(
            f"place of {one.name}", place, "", "at most 5" if has_goal else "", place <= 5 if has_goal else None, how
        )
    how = f"{sum(place <= _PLACE for place in places)} of {len(places)} among the best {_PLACE}"
    yield Figure("median place of chosen layouts", statistics.median(places), "", "", None, how)
    for one in (TRILLION, LLAMA_3) if scale else ():
        found = one.plans(**ANYTHING)
        slower = found.cheapest(**one.layout).step_s / found[0].step_s - 1
        print(f"\n{one.name}, anything allowed\n{found.table(5, **one.layout)}")
        how = f"of {len(found.layouts)} layouts; {100 * slower:.1f}% slower than the best"
        yield Figure(f"place of {one.name}, anything allowed", found.place(**one.layout), "", "", None, how)


def _compute_and_bubble_s(plan: Plan) -> float:
    layer_flops = plan.num_micro_batch_tokens * plan.model.layer_flops(plan.length) / plan.tp
    passes = 4 if plan.recompute == "full" else 3
    work_s = passes * layer_flops * max(plan.num_stage_layers) / 5e12  # so slow that every plan is possible
    return work_s * (plan.num_micro_batches + (plan.pp - 1) / plan.num_chunks)
