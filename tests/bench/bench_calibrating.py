"""How far steps and saves of this machine are from what its calibration predicts; every run is printed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import cloudpickle
import held_out_runs
from figures import Figure
from held_out_runs import HeldOut
from rich.console import Console
from rich.table import Table

import worldsize as ws

_LEAST_CPU_SHARE = 0.9  # below it even the best step waited for a core that other work had


def calibrating(scale: float) -> Iterator[Figure]:
    """The median error over held-out runs, measured right after the calibration; what other work disturbed, apart."""
    cloudpickle.register_pickle_by_value(held_out_runs)
    start_s = time.monotonic()
    calibration = ws.calibrate(2) if scale else ws.calibrate(2, budget_s=1)
    took_s = time.monotonic() - start_s
    runs = held_out_runs.RUNS if scale else (held_out_runs.RUNS[0], held_out_runs.RUNS[8])
    found = list(held_out_runs.steps(calibration, runs, 20 if scale else 6))
    saves = list(held_out_runs.saves(calibration)) if scale else []
    _print(found + saves)
    print(calibration.describe())
    met = None if calibration.is_busy else took_s <= 20
    yield Figure("calibrating this machine", took_s, "s", "at most 20, idle", met, calibration.busy_in_words())
    undisturbed = [one for one in found if one.cpu_share >= _LEAST_CPU_SHARE]
    how = f"median of {len(undisturbed)} of {len(found)} runs, best steps; the others had no core for part of the time"
    if undisturbed:
        error = _median(undisturbed)
        yield Figure("held-out steps from the calibration", 100 * error, "% off", "at most 10", error <= 0.1, how)
    for num_ranks in (1, 2):
        if alike := [one for one in undisturbed if one.num_ranks == num_ranks]:
            how = f"median of {len(alike)} runs, {100 * max(abs(one.error) for one in alike):.0f}% at worst"
            yield Figure(f"of them with {num_ranks} ranks", 100 * _median(alike), "% off", "", None, how)
    if saves:
        yield Figure("held-out saves", 100 * _median(saves), "% off", "", None, f"median of {len(saves)} sizes")


def _median(found: Sequence[HeldOut]) -> float:
    return statistics.median(abs(one.error) for one in found)


def _print(found: Sequence[HeldOut]) -> None:
    table = Table("held-out run", "best ms", "of them CPU", "predicted ms", "error")
    for one in found:
        row = (f"{1e3 * one.measured_s:.3g}", f"{one.cpu_share:.0%}", f"{1e3 * one.predicted_s:.3g}")
        table.add_row(one.name, *row, f"{one.error:+.1%}")
    Console().print(table)
