"""The page of a class's results, in one file: who is fastest, how much timings varied, and on which machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autograder.bench.batch import has_right_weights
from autograder.files import templates
from worldsize.bench import Machine, Point, Result

_FINGERPRINT_CHARS = 8


@dataclass(frozen=True)
class LeaderboardRow:
    """A submission's place, its name or fingerprint, and its points by number of ranks and kind."""

    place: int
    name: str
    is_fingerprint: bool
    points: dict[tuple[int, str], Point]


@dataclass(frozen=True)
class Board:
    """Comparable results, measured on the same machine with the same task; `columns` are (ranks, kind)."""

    machine: Machine
    result: Result  # an arbitrary one: task and cluster are the same in all
    columns: list[tuple[int, str]]
    rows: list[LeaderboardRow]
    measured: str


def page(results: Mapping[str, Result], has_names: bool) -> tuple[str, int]:
    """The page as HTML, and the number of results on it: with the right weights and measured on an idle machine."""
    right = {student: result for student, result in results.items() if has_right_weights(result)}
    disturbed = to_measure_again(right)
    shown = {student: result for student, result in right.items() if student not in disturbed}
    html = _environment.get_template("leaderboard.html.j2").render(
        boards=[_board(same, has_names) for same in _comparable(shown)],
        num_wrong=len(results) - len(right),
        num_disturbed=len(disturbed),
        has_names=has_names,
    )
    return html, len(shown)


def to_measure_again(results: Mapping[str, Result]) -> list[str]:
    """The students whose programs are right but were timed on a busy machine."""
    return [student for student, result in results.items() if result.is_disturbed and has_right_weights(result)]


def _comparable(results: Mapping[str, Result]) -> list[dict[str, Result]]:
    """The results grouped by task and machine, the largest group first."""
    groups: dict[str, dict[str, Result]] = {}
    for student, result in results.items():
        varies = {"clock_mhz", "gpu_clocks_mhz", "matrix_flops_per_s"}
        basis = [result.machine.model_dump(exclude=varies), result.task, result.cluster, result.num_threads]
        groups.setdefault(repr(basis), {})[student] = result
    return sorted(groups.values(), key=len, reverse=True)


def _board(results: Mapping[str, Result], has_names: bool) -> Board:
    points = {
        student: {(one.world_size, one.kind): one for one in result.points if one.scaling == "strong"}
        for student, result in results.items()
    }
    columns = sorted({key for found in points.values() for key in found}, key=lambda key: (key[1] != "real", key[0]))
    largest = max((key for key in columns if key[1] == "real"), default=columns[-1])

    def speed(student: str) -> float:
        found = points[student].get(largest)
        return found.samples_per_s_per_rank if found else 0.0

    rows = []
    for place, student in enumerate(sorted(results, key=speed, reverse=True), start=1):
        name = student if has_names else results[student].program_sha256[:_FINGERPRINT_CHARS]
        rows.append(LeaderboardRow(place, name, not has_names, points[student]))
    any_result = next(iter(results.values()))
    times = sorted(result.measured_at[:16].replace("T", " ") + " UTC" for result in results.values())
    measured = times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    return Board(any_result.machine, any_result, columns, rows, measured)


_environment = templates()
