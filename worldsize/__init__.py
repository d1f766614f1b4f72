"""Distributed training, run for real from a notebook cell."""

from worldsize.calibrate import Calibration, calibrate
from worldsize.check import CheckFailed, expect_close
from worldsize.comparing import ComparedRuns, compare
from worldsize.launch import RankFailed, Run, RunError, RunStopped, RunTimeout, device, profile, run, span
from worldsize.paper import DeepRun, PaperRun, declared, paper, torchrun
from worldsize.planning import plan
from worldsize.timeline import Event, Timeline

__all__ = [
    "Calibration",
    "CheckFailed",
    "ComparedRuns",
    "DeepRun",
    "Event",
    "PaperRun",
    "RankFailed",
    "Run",
    "RunError",
    "RunStopped",
    "RunTimeout",
    "Timeline",
    "calibrate",
    "compare",
    "declared",
    "device",
    "expect_close",
    "paper",
    "plan",
    "profile",
    "run",
    "span",
    "torchrun",
]


def load_ipython_extension(shell: object) -> None:
    """Register `%%torchrun` when `%load_ext worldsize` runs."""
    from worldsize.launch import magic

    magic.load(shell)  # type: ignore[arg-type]
