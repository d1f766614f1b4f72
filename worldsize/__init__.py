"""Distributed training, run for real from a notebook cell."""

from worldsize.check import CheckFailed, expect_close
from worldsize.launch import RankFailed, Run, RunError, RunStopped, RunTimeout, profile, run, span, torchrun
from worldsize.timeline import Event, Timeline

__all__ = [
    "CheckFailed",
    "Event",
    "RankFailed",
    "Run",
    "RunError",
    "RunStopped",
    "RunTimeout",
    "Timeline",
    "expect_close",
    "profile",
    "run",
    "span",
    "torchrun",
]


def load_ipython_extension(shell: object) -> None:
    """Register `%%torchrun` when `%load_ext worldsize` runs."""
    from worldsize.launch import magic

    magic.load(shell)  # type: ignore[arg-type]
