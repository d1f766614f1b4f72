"""Whether honest answers get full marks on a machine that has more to do than it can."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from figures import Figure, scaled
from repository import ROOT

from autograder.grading.verify import Case, cases, verify

LAB, NUM_GRADINGS = "lab01", 200
NOISE = """
import sys as _sys, warnings as _warnings
for _line in range(10_000):
    print("a warning that nobody reads", _line, file=_sys.stderr)
_warnings.warn("and one more")
"""
SLOW_START = "import time\ntime.sleep(1)\n"
# every function of the cell becomes a method, reached by a lambda under its own name
ODD = """
class Größe_{name}:
    @staticmethod
    def _(source):
        exec(source, globals())
        Größe_{name}.methode = staticmethod(globals()[{name!r}])
        globals()[{name!r}] = lambda *args, **more: Größe_{name}.methode(*args, **more)


Größe_{name}._({source!r})
"""


def honest(scale: float) -> Iterator[Figure]:
    """Of 200 gradings of right answers in every dress, beside a process per core that only burns time, the faults."""
    known = [case for case in cases(ROOT, LAB) if case.score is None]
    dressed = [dress(case) for case in known for dress in (_plain, _noisy, _slow, _odd)]
    num_gradings = scaled(NUM_GRADINGS, scale)
    asked = list(itertools.islice(itertools.cycle(dressed), num_gradings))
    num_cores = os.cpu_count() or 1
    with burning(num_cores):
        lost = [finding for finding in verify(ROOT, asked, 2 * num_cores) if finding.problems]
    for finding in lost:
        print(finding.case.name, finding.problems, file=sys.stderr)
    num_full = num_gradings - len(lost)
    num_faults = sum(finding.report.is_fault for finding in lost)
    how = f"{len(dressed)} answers to {LAB}, {2 * num_cores} at once, a burning process per core"
    goal = f"{num_gradings} of {num_gradings}"
    yield Figure("honest answers under load: full marks", num_full, "", goal, num_full == num_gradings, how)
    yield Figure("honest answers under load: grader faults", num_faults, "", "0", num_faults == 0, how)


def _plain(case: Case) -> Case:
    return case


def _noisy(case: Case) -> Case:
    return _before(case, "noisy", NOISE)


def _slow(case: Case) -> Case:
    return _before(case, "slow", SLOW_START)


def _before(case: Case, name: str, lines: str) -> Case:
    """The answer with these lines before its first cell."""
    first = next(iter(case.cells))
    return replace(case, name=f"{case.name}, {name}", cells={**case.cells, first: f"{lines}\n{case.cells[first]}"})


def _odd(case: Case) -> Case:
    cells = {name: ODD.format(source=source, name=name) for name, source in case.cells.items()}
    return replace(case, name=f"{case.name}, odd", cells=cells)


@contextmanager
def burning(num_cores: int) -> Iterator[None]:
    """Processes that only burn time, one a core, until the block ends or this process does."""
    burn = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    burners = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(num_cores)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
