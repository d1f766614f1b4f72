"""Distributed training, run for real from a notebook cell."""

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {  # imported when a name is first used, so that the arithmetic needs nothing but the standard library
    "Calibration": "calibrate",
    "CheckFailed": "check",
    "ComparedRuns": "comparing",
    "DeepRun": "paper",
    "Event": "timeline",
    "PaperRun": "paper",
    "RankFailed": "launch",
    "Run": "launch",
    "RunError": "launch",
    "RunStopped": "launch",
    "RunTimeout": "launch",
    "Timeline": "timeline",
    "calibrate": "calibrate",
    "compare": "comparing",
    "declared": "paper",
    "device": "launch",
    "expect_close": "check",
    "paper": "paper",
    "plan": "planning",
    "profile": "launch",
    "run": "launch",
    "span": "launch",
    "torchrun": "paper",
}


class _Package(ModuleType):
    """This package: `calibrate` and `paper` name functions in it, and not the modules that are called so too."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:  # cloudpickle knows how to pickle plain modules only
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value
    if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: object) -> None:
    """Register `%%torchrun` when `%load_ext worldsize` runs."""
    from worldsize.launch import magic

    magic.load(shell)  # type: ignore[arg-type]


if "ipykernel" in sys.modules and sys.platform != "emscripten":  # a notebook, whose first run then need not wait
    importlib.import_module(f"{__name__}.launch")
