"""What a week and a lab cost in processor time, which is what CI's minutes are made of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from figures import Figure, scaled
from repository import ROOT

from autograder.authoring.notebooks import find_sources
from autograder.course import lab_settings
from autograder.grading.verify import cases

WEEK_CPU_S, JUDGING_CPU_S = 60, 5
ADOPTING = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: a jail is ended after the judge, and by nobody
code = subprocess.run(sys.argv[1:]).returncode
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
sys.exit(code)
"""
WEEK = """
import sys, tempfile
from pathlib import Path
from executed import week_outputs
week_outputs(Path(sys.argv[1]), Path(tempfile.mkdtemp()), "")
"""
JUDGINGS = """
import sys
from repository import ROOT
from autograder.grading.verify import cases, try_case
for seed in range(int(sys.argv[2])):
    assert not try_case(ROOT, cases(ROOT, sys.argv[1])[0], seed).problems
"""


def budgets(scale: float) -> Iterator[Figure]:
    """The processor time of every week from top to bottom, and of one judging of every lab's solution."""
    sources = find_sources(ROOT)
    for path in sources.weeks[-scaled(len(sources.weeks), scale) :]:  # the last starts no rank
        took_s = _cpu_s(WEEK, str(path))
        how = "processor time of all its processes"
        yield Figure(f"{path.stem[:6]} unattended", took_s, "s", f"at most {WEEK_CPU_S}", took_s <= WEEK_CPU_S, how)
    labs = [path.parent.name for path in sources.labs if not lab_settings(path.parent).has_real_jobs]
    for lab in labs[: scaled(len(labs), scale)]:
        took_s = (_cpu_s(JUDGINGS, lab, "3") - _cpu_s(JUDGINGS, lab, "1")) / 2  # without what is imported once
        how = f"processor time; {len(cases(ROOT, lab))} known answers"
        yield Figure(f"judging {lab}", took_s, "s", f"at most {JUDGING_CPU_S}", took_s <= JUDGING_CPU_S, how)


def _cpu_s(program: str, *args: str) -> float:
    """Processor seconds of a Python program and of all that it started, also of what outlived its parent."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    command = [sys.executable, "-c", ADOPTING, sys.executable, "-c", program, *args]
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])
