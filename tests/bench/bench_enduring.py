"""How long a year of 10,000 GPUs takes, and how far fifty years of them are from Daly's complete model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import mean, stdev

from figures import Figure

from worldsize import outages

_HOUR_S, _YEAR_S = 3600, 365 * 86400
_JOB = outages.TrainingJob(1250, stall_s=60, start_s=600)


def enduring(scale: float) -> Iterator[Figure]:
    """Processor time of a year, then goodput at four intervals beside the closed form, at Llama 3's rates."""
    causes = outages.published()
    start_s = time.process_time()
    year = outages.endure(1440, _JOB, outages.draw(causes, _JOB.num_nodes, _YEAR_S), _YEAR_S)
    took_s = time.process_time() - start_s
    how = f"{year.num_failures:,} failures, {year.num_saves:,} saves, drawn and endured; processor time"
    yield Figure("a year of 10,000 GPUs", took_s, "s", "at most 1", took_s <= 1, how)

    num_years = 50 if scale else 4
    drawn = [outages.draw(causes, _JOB.num_nodes, _YEAR_S, seed) for seed in range(num_years)]
    mean_s = _HOUR_S / (_JOB.num_nodes * sum(cause.per_node_hour for cause in causes))
    for save_after_s in (300, 1440, 4 * _HOUR_S):
        goodputs = [outages.endure(save_after_s, _JOB, failures, _YEAR_S).goodput for failures in drawn]
        expected = _dalys_goodput(save_after_s, mean_s)
        errors = abs(mean(goodputs) - expected) / (stdev(goodputs) / math.sqrt(num_years))
        how = f"{mean(goodputs):.4f} in {num_years} years, {expected:.4f} by Daly's complete model"
        name = f"goodput, a save after {save_after_s / 60:.0f} min"
        yield Figure(name, errors, "standard errors", "at most 3", errors <= 3, how)


def _dalys_goodput(save_after_s: float, mean_s: float) -> float:
    """Source: Daly, A higher order estimate of the optimum checkpoint interval, FGCS 22, 2006."""
    start, piece = math.exp(_JOB.start_s / mean_s), math.expm1((save_after_s + _JOB.stall_s) / mean_s)
    return save_after_s / (mean_s * start * piece)
