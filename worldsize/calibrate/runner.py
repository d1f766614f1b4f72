"""`calibrate`: this machine, measured by ranks that run side by side."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any

from worldsize.calibrate.result import FORMAT, Calibration, is_busy
from worldsize.launch.launcher import arguments
from worldsize.launch.runner import run

_LEAST_BUDGET_S = 1.0


def calibrate(
    world_size: int = 2,
    *,
    num_threads: int = 1,
    folder: str | os.PathLike[str] | None = None,
    budget_s: float = 12,
    is_strict: bool = False,
) -> Calibration:
    """Measure this machine with `world_size` Gloo ranks of `num_threads` threads side by side.

    The calibration's `cluster` is one like any other:
    `ws.paper(step, world_size=2, cluster=calibration.cluster).step_s` predicts a training step of ranks with that many
    threads. `torch.save` writes to `folder`, or to the folder for temporary files. All probes are timed in turn,
    again and again for `budget_s` seconds, at least twice.

    With `is_strict`, a machine that other work keeps busy is refused; without it, the calibration says so.

    Raises:
        ValueError: an argument is wrong, or the machine is busy and `is_strict`.
    """
    world_size = arguments.whole_world_size(world_size)
    if not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f"num_threads is {num_threads!r}; give the number of threads per rank, at least 1")
    if not budget_s >= _LEAST_BUDGET_S:
        raise ValueError(f"budget_s is {budget_s!r}; give {_LEAST_BUDGET_S:g} second or more")
    from worldsize.bench import machine  # imports torch, which takes a second

    before = machine.busy_cores()
    if is_strict:
        _refuse_busy(before, machine.num_cores())
    target = None if folder is None else os.fspath(folder)
    ranks = run(
        _measure,
        num_threads,
        target,
        float(budget_s),
        world_size=world_size,
        backend="gloo",
        echo=False,
        timeout_s=60 + 20 * budget_s,
        stalled_s=None,
    ).values
    measured = _together(ranks)
    after = machine.busy_cores()
    calibration = Calibration.parse(
        {
            "format": FORMAT,
            "machine": machine.processor(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "world_size": world_size,
            "num_threads": num_threads,
            "num_cores": machine.num_cores(),
            "memory_bytes": machine.memory_bytes(),
            "busy_cores": [busy for busy in (before, after) if busy is not None],
            **measured,
        }
    )
    if is_strict:
        _refuse_busy(after, machine.num_cores())
    return calibration


def _refuse_busy(busy_cores: float | None, num_cores: int) -> None:
    if busy_cores is not None and is_busy([busy_cores]):
        raise ValueError(
            f"other work keeps {busy_cores:.1f} of {num_cores} cores busy: end it and calibrate again, or "
            "pass is_strict=False and read in the result which figures still hold"
        )


def _measure(*args: Any) -> Any:
    from worldsize.calibrate import probes  # imports torch, which only ranks need

    return probes.measure(*args)


def _together(ranks: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Merge the rows of all ranks: all ranks' times of their own work, rank 0's times of links and files."""
    merged = {kind: [dict(row) for row in rows] for kind, rows in ranks[0].items()}
    for other in ranks[1:]:
        for kind in other.keys() - {"links", "write", "read"}:
            for row, same in zip(merged[kind], other[kind], strict=True):
                row["times_s"] = [*row["times_s"], *same["times_s"]]
    return merged
