"""Why are my steps slow?

Choose the traces of torch.profiler, one for each rank, as `.json` or `.json.gz`. Your browser reads them on this
machine and sends them to nobody. The report says what each rank spends its step on, what limits it, in which calls, and
what to do. How to record the traces, and what the rows mean, is in
[experiments](../docs/experiments.md#why-your-own-jobs-steps-are-slow); in a terminal it is `python -m worldsize explain
traces/*.json`.
"""

from __future__ import annotations

from collections.abc import Sequence

from calculators.calculator import Answer
from worldsize.slow_steps import explain_steps

QUESTION = None
FILES = ".json,.gz"
RANGES: dict[str, object] = {}
LABELS: dict[str, str] = {}


def answer() -> Answer:
    """Ask for files, of which there are none at the start."""
    return Answer("Choose one file for each rank.")


def explain(paths: Sequence[str]) -> Answer:
    """The report on traces, whose first line is the sentence."""
    first, _, rest = explain_steps(paths).partition("\n")
    return Answer(first, report=rest.strip())
