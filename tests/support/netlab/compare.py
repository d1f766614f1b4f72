"""The emulated cluster against real hosts: the same programs on both, and how far apart their times are."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from netlab import cases
from netlab.virtual_hosts import Lab
from worldsize.launch import run
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch
from worldsize.units import MB

MEDIAN_GOAL, WORST_GOAL = 0.05, 0.20
NUM_ROUNDS, NUM_REPEATS = 2, 5  # rounds through the whole plan: a host can be busy for longer than a case's repeats
_LEAD_S = 0.03  # what ranks need to get ready, besides the network's delays
_TIMEOUT_S = 120

# a rate for each host in Mbit/s, seconds of delay, and the cases, of sizes that take some 0.1 to 0.4 s
PLAN: tuple[tuple[tuple[float, ...], float, tuple[tuple[str, int], ...]], ...] = (
    ((50,) * 2, 0.0, (("send", 1 * MB), ("all-reduce", 1 * MB))),
    ((100,) * 2, 0.005, (("send", 2 * MB), ("all-reduce", 3 * MB), ("ring by hand", 2 * MB), ("DDP step", 4 * MB))),
    ((200,) * 2, 0.010, (("send", 4 * MB), ("all-reduce", 4 * MB), ("DDP step", 8 * MB))),
    ((500,) * 2, 0.0, (("send", 8 * MB), ("all-reduce", 8 * MB))),
    ((1000,) * 2, 0.0, (("send", 16 * MB), ("all-reduce", 16 * MB))),
    ((200,) * 3, 0.0, (("all-reduce", 4 * MB), ("ring by hand", 2 * MB), ("DDP step", 4 * MB), ("1F1B", MB // 2))),
    ((100,) * 3, 0.002, (("all-reduce", 2 * MB), ("ring by hand", 1 * MB), ("1F1B", MB // 4))),
    ((100,) * 4, 0.001, (("all-reduce", 2 * MB), ("ring by hand", 1 * MB), ("1F1B", MB // 4))),
    (
        (100, 300, 1000),
        0.0,
        (("all-reduce", 1 * MB), ("ring by hand", 1 * MB), ("1F1B", MB // 4), ("DDP step", 2 * MB)),
    ),
    ((400, 400, 400, 100), 0.0, (("all-reduce", 2 * MB), ("all-to-all", 2 * MB), ("all-gather", 2 * MB))),
    ((200,) * 4, 0.0, (("all-gather", 4 * MB), ("1F1B", MB // 4))),
    ((100, 100, 50), 0.005, (("send", 1 * MB), ("all-reduce", 1 * MB), ("1F1B", MB // 4))),
)


@dataclass(frozen=True)
class Result:
    """One case: its times by the textbook's formula, emulated and real, all in seconds."""

    kind: str
    size_bytes: int
    rates_mbit_s: tuple[float, ...]
    delay_s: float
    formula_s: float
    emulated_s: float
    real_s: float

    @property
    def num_hosts(self) -> int:
        """How many hosts took part."""
        return len(self.rates_mbit_s)

    @property
    def error_fraction(self) -> float:
        """How much longer the emulated time is than the real one, as a fraction of the real one."""
        return self.emulated_s / self.real_s - 1


def compare(lab: Lab, todo: Iterable[tuple[str, int]]) -> list[Result]:
    """The results of these cases (kind, size in bytes) on a lab that has been entered."""
    todo = list(todo)
    real_s = real_times_s(lab, todo)
    return [
        Result(
            *(kind, size_bytes, lab.rates_mbit_s, lab.delay_s),
            formula_s=formula_s(kind, size_bytes, lab),
            emulated_s=emulated_time_s(kind, size_bytes, lab),
            real_s=one_s,
        )
        for (kind, size_bytes), one_s in zip(todo, real_s, strict=True)
    ]


def real_times_s(lab: Lab, todo: list[tuple[str, int]]) -> list[float]:
    """The seconds of each case on the hosts until the last rank is done; the best repeat, because noise only delays."""
    lead_s = _LEAD_S + 5 * lab.delay_s
    options = {"netns": lab.hosts, "env": lab.env, "backend": "gloo", "echo": False, "timeout_s": _TIMEOUT_S}
    spec = Spec(cases.measure, (todo, NUM_REPEATS, lead_s), world_size=lab.num_hosts, **options)
    ranks = launch(spec).values
    return [
        min(max(repeat) for repeat in zip(*(rank[case] for rank in ranks), strict=True)) for case in range(len(todo))
    ]


def emulated_time_s(kind: str, size_bytes: int, lab: Lab) -> float:
    """The virtual seconds of a case on `lab.cluster`; a DDP step's computation counts as measured, others have none."""
    compute = "measured" if kind == "DDP step" else "none"
    options = {"cluster": lab.cluster, "faults": lab.faults, "compute": compute, "echo": False, "timeout_s": _TIMEOUT_S}
    timeline = run(cases.once, kind, size_bytes, world_size=lab.num_hosts, **options).timeline
    barriers_s = [event.end_s for event in timeline.of(0) if event.name == "barrier"]
    return timeline.end_s - max(barriers_s)


def formula_s(kind: str, size_bytes: int, lab: Lab) -> float:
    """The textbook's seconds, for steps that each cost two delays (Gloo's rendezvous) and their bytes over the rate."""
    num_hosts, bytes_per_s = lab.num_hosts, min(lab.rates_mbit_s) * 1e6 / 8 * lab.payload_fraction
    steps, step_bytes = {
        "send": (1, size_bytes),
        "ring by hand": (num_hosts - 1, size_bytes),
        "all-reduce": (2 * (num_hosts - 1), size_bytes / num_hosts),
        "DDP step": (2 * (num_hosts - 1), size_bytes / num_hosts),
        "all-gather": (num_hosts - 1, size_bytes / num_hosts),
        "all-to-all": (num_hosts - 1, size_bytes / num_hosts),
        "1F1B": (2 * (cases.NUM_MICROBATCHES + num_hosts - 2), size_bytes),
    }[kind]
    return steps * (2 * lab.delay_s + step_bytes / bytes_per_s)


def compare_all() -> list[Result]:
    """The results of the whole plan, each from the round in which its hosts were fastest."""
    rounds = [[result for where in PLAN for result in _compare_at(*where)] for _ in range(NUM_ROUNDS)]
    return [min(same, key=lambda one: one.real_s) for same in zip(*rounds, strict=True)]


def _compare_at(rates_mbit_s: Sequence[float], delay_s: float, todo: Iterable[tuple[str, int]]) -> list[Result]:
    with Lab(rates_mbit_s, delay_s) as lab:
        return compare(lab, todo)


def measured_again(result: Result) -> Result:
    """The better of this result and the same case on new hosts."""
    with Lab(result.rates_mbit_s, result.delay_s) as lab:
        again = compare(lab, [(result.kind, result.size_bytes)])
    return min(result, *again, key=lambda one: one.real_s)


def median_error(results: Iterable[Result]) -> float:
    """The median of the absolute errors, as a fraction."""
    return statistics.median(abs(one.error_fraction) for one in results)


def worst(results: Iterable[Result]) -> Result:
    """The result with the largest absolute error."""
    return max(results, key=lambda one: abs(one.error_fraction))
