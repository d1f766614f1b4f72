"""Real ranks from a notebook cell, a script or a checker, and every failure explained."""

from worldsize.launch.elastic import torchrun
from worldsize.launch.failure import Failure, RankFailed, RunError, RunTimeout
from worldsize.launch.record import span
from worldsize.launch.runner import Run, run

__all__ = ["Failure", "RankFailed", "Run", "RunError", "RunTimeout", "run", "span", "torchrun"]
