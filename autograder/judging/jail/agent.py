"""Runs under torch's elastic agent inside the jail, and their failures as data for the judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from autograder.judging.jail.cells import Setting, call_on_rank
from worldsize.launch import RunError, RunTimeout
from worldsize.launch.protocol.failure import cut
from worldsize.message import to_fields


def call_under_agent(
    cells: list[tuple[str, str]],
    setting: Setting,
    on_rank: Callable[..., Any],
    args: tuple[Any, ...],
    each: Sequence[Sequence[Any]] | None,
    world_size: int,
    limit_s: float,
) -> dict[str, Any]:
    """Call torchrun inside the sandbox; return the ranks' values, or a description of why there are none."""
    from worldsize.launch.launcher.spec import Spec
    from worldsize.launch.runner import launch

    options = {"world_size": world_size, "each": each, "launcher": "torchrun", "echo": False, "timeout_s": limit_s}
    try:
        return {"values": launch(Spec(call_on_rank, (cells, setting, on_rank, *args), **options)).values}
    except RunError as error:
        return describe(error)


def describe(error: RunError) -> dict[str, Any]:
    """Describe the failure of a run inside the sandbox as data, which `failures.raise_described` reads."""
    standings = json.dumps([fields_of_standing(one) for one in error.standings])
    if isinstance(error, RunTimeout):
        return {"ending": error.ending.end.name, "standings": standings}
    failures = [to_fields(cut(failure)) for failure in error.failures]
    return {"failures": json.dumps(failures), "standings": standings}


def fields_of_standing(standing: Any) -> dict[str, Any]:
    """The JSON fields of where a rank was."""

    def of_call(call: Any) -> dict[str, Any] | None:
        return call and {**call.to_fields(), "number": call.number, "state": call.state}

    return {
        "rank": standing.rank,
        "state": standing.state,
        "lines": [vars(line) for line in standing.lines],
        "calls": [of_call(call) for call in standing.calls],
        "native": of_call(standing.native),
        "num_native": standing.num_native,
    }
