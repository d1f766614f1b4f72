"""Hidden checks of the report: a design that adds up, and a cost that follows the plan.

All else is read by a person.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autograder.checks import call_each, entries, points, whole
from worldsize import capstone
from worldsize.capstone.design import Design
from worldsize.check import CheckFailed

_MOST_CHARS = 50_000
SYSTEMS = ("llama_3_405b", "gpt_530b", "gpt_175b", "bloom_176b")
# times the arithmetic at the peak; what was published takes 2.4 to 3.1 times as long
MOST_S = 1e9  # of a step, which no system takes
MOST_SLOWER = 6

seen: dict[str, Any] = {}  # what two checks look at; every submission has a judge of its own


def design_on_rank(student: Any) -> Any:
    return student.design_file()


def read(student: Any) -> Design:
    """The design that the student's function gives. Raises: CheckFailed."""
    if "design" not in seen:
        (seen["design"],) = student.run(design_on_rank, world_size=1)
    text = seen["design"]
    if not isinstance(text, str) or len(text) > _MOST_CHARS:
        raise CheckFailed(
            "the text of a design's file",
            "something else",
            "It is the TOML text itself, as `.read_text()` of a shipped design.",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "design.toml")
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            return capstone.load(path)
        except (ValueError, RecursionError) as error:
            reason = str(error).replace(f"{path}: ", "")
            raise CheckFailed("a design", "a file that is none", reason[:500]) from None


@points(2, cell="check_design_file")
def check_a_design_that_adds_up(student, rng):
    """`design_file` gives a design that adds up."""
    design = read(student)
    if problems := capstone.check(design):
        raise CheckFailed(
            "a design that adds up", f"{len(problems)} things that do not", problems[0][:500]
        )


@points(1, cell="check_design_file")
def check_what_was_published(student, rng):
    """The design says what was published: the step, and where."""
    known = read(student).published
    if known is None or not known.source.strip():
        raise CheckFailed(
            "[published] with source and step_s", "none", "Without it nothing can be compared."
        )


@points(2, cell="check_step_parts")
def check_a_cost_that_follows_the_plan(student, rng):
    """`step_parts` gives at least three parts of a step, for any system and batch.

    Their sum is at least the arithmetic at the peak of all GPUs, and at most six times that.
    """
    asked = {}
    for name in SYSTEMS:
        published = capstone.example(name)
        for times in (1, whole(rng, 12, 20)):
            batch = times * published.data.global_batch
            asked[f"{published.name}, {batch:,} sequences"] = capstone.changed(
                published, data__global_batch=batch
            ).layout
    (found,) = student.run(
        call_each, "step_parts", [(one,) for one in asked.values()], world_size=1
    )
    for (called, plan), parts in zip(asked.items(), entries(found, len(asked)), strict=True):
        peak_flops_per_s = plan.cluster.world_size * plan.cluster.gpu.peak_flops_per_s["bfloat16"]
        expect_parts(
            parts, plan.model.flops(plan.num_tokens, plan.length) / peak_flops_per_s, called
        )


def expect_parts(parts: Any, floor_s: float, called: str) -> None:
    """Raise CheckFailed unless these are parts of a step that is possible."""
    seconds = list(parts.values()) if isinstance(parts, Mapping) else []
    if len(seconds) < 3 or not all(
        isinstance(one, int | float) and 0 <= one < MOST_S for one in seconds
    ):
        raise CheckFailed(
            f"{called}: a dictionary of at least three parts, in seconds", "something else"
        )
    step_s = math.fsum(seconds)
    if step_s < floor_s:
        raise CheckFailed(
            f"{called}: at least {floor_s:.3g} s, the arithmetic at the peak", f"{step_s:.3g} s"
        )
    if step_s > MOST_SLOWER * floor_s:
        raise CheckFailed(f"{called}: at most {MOST_SLOWER * floor_s:.3g} s", f"{step_s:.3g} s")
