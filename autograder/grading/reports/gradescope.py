"""Results for Gradescope.

Source: gradescope-autograders.readthedocs.io/en/latest/specs (results.json; November 2026).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from autograder.grading import audit_log
from autograder.grading.standing import Points, Standing


def write_gradescope(standings: Iterable[Standing], to: Path, entries: Sequence[audit_log.AuditEntry] = ()) -> None:
    """Write `ASSIGNMENT/STUDENT/results.json` below a folder, for every submission whose score is final.

    Gradescope's format cannot express a submission without a score, so the others get no file, and an earlier one is
    removed. Points of the cells are as graded; the score at the top is after extra credit and late penalty. Students
    see it once it is published.
    """
    durations = {key[:2]: entry.duration_s for key, entry in audit_log.latest(list(entries)).items()}
    for standing in standings:
        folder = to / _folder(standing.assignment) / _folder(standing.student)
        if standing.submitted_score is None:
            (folder / "results.json").unlink(missing_ok=True)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        results = {
            "score": standing.submitted_score,
            "execution_time": durations.get((standing.assignment, standing.author or standing.student)),
            "output": f"Late: {standing.penalty:g} points taken." if standing.penalty else "",
            "output_format": "text",
            "visibility": "after_published",
            "stdout_visibility": "hidden",
            "tests": [_test(points) for points in standing.cells],
        }
        kept = {name: value for name, value in results.items() if value is not None}
        (folder / "results.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")


def _test(points: Points) -> dict[str, object]:
    score = points.score or 0.0
    return {
        "name": points.cell,
        "score": score,
        "max_score": points.max_score,
        "status": "passed" if score >= points.max_score else "failed",
        "output": f"{score:g} of {points.max_score:g} points.",
        "output_format": "text",
        "visibility": "after_published",
    }


def _folder(name: str) -> str:
    """Turn a name with any characters into the name of a single folder."""
    return quote(name, safe=" @+,") if name.strip(".") else name.replace(".", "%2E")
