"""Launching of real ranks from a notebook cell, a script or a checker, with an explanation of every failure."""

import sys

if sys.platform == "win32":  # before an import fails that would not say why
    raise ImportError("worldsize starts its ranks as forks, which Windows does not have: work inside WSL")

from worldsize.launch.device import device
from worldsize.launch.launcher import forkserver
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.reports.result import RankFailed, Run, RunError, RunStopped, RunTimeout
from worldsize.launch.runner import run
from worldsize.launch.worker.profiling import profile
from worldsize.launch.worker.spans import span

__all__ = [
    "Failure",
    "RankFailed",
    "Run",
    "RunError",
    "RunStopped",
    "RunTimeout",
    "device",
    "profile",
    "run",
    "span",
]

forkserver.start_early()
