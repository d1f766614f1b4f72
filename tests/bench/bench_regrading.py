"""How far the score of one submission of the project moves when it is graded again and again on a busy machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from bench_honest import burning
from figures import Figure, scaled
from repository import ROOT

from autograder.grading.verify import cases, try_case

NUM_GRADINGS = 10
ANSWERS = ("solution", "wrong/one_all_reduce_per_parameter")


def regrading(scale: float) -> Iterator[Figure]:
    """The spread of the scores of a fast and a slow program over ten gradings, a burning process per core beside."""
    known = {case.name: case for case in cases(ROOT, "project1")}
    num_cores = (os.cpu_count() or 1) if scale else 0  # nothing is judged at the smallest size
    num_gradings = scaled(NUM_GRADINGS, scale)
    for name in ANSWERS[: scaled(len(ANSWERS), scale)]:
        with burning(num_cores):
            reports = [try_case(ROOT, known[name]).report for _ in range(num_gradings)]
        scores = [report.score for report in reports]
        print(name, scores, file=sys.stderr)
        how = f"{num_gradings} gradings, {num_cores} burning processes; {min(scores):g} to {max(scores):g} points"
        spread = max(scores) - min(scores)
        yield Figure(f"project 1 graded again: {name}", spread, "points", "at most 2", spread <= 2, how)
