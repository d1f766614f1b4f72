"""Real ranks from a notebook cell, a script or a checker, and every failure explained."""

import sys

if sys.platform == "win32":  # before an import fails that would not say why
    raise ImportError("worldsize starts its ranks as forks, which Windows does not have: work inside WSL")

from worldsize.launch.command import torchrun
from worldsize.launch.failure import Failure
from worldsize.launch.outcome import RankFailed, Run, RunError, RunStopped, RunTimeout
from worldsize.launch.profiling import profile
from worldsize.launch.record import span
from worldsize.launch.runner import run

__all__ = ["Failure", "RankFailed", "Run", "RunError", "RunStopped", "RunTimeout", "profile", "run", "span", "torchrun"]
