"""Results of optional packages: measured where a package is installed, elsewhere those recorded where all were.

A lesson's text can so speak of a result that every reader sees. To record, run a lesson with WORLDSIZE_RECORD set.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from worldsize.bench.machine import MIN_BUSY_CORES, busy_cores
from worldsize.cores import num_cores
from worldsize.course import slurm
from worldsize.course.programs import find
from worldsize.files import replace_file

__all__ = ["PACKAGES", "Package", "is_installed", "result", "where"]

_FILE = Path(__file__).parents[1] / "data" / "recorded.json"
_DIGITS = 7  # as many as a float32 has


@dataclass(frozen=True)
class Package:
    """What must be there for a package to be installed, and the command that installs it."""

    command: str
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    version_flag: str = "--version"


def _extra(name: str, *modules: str, programs: tuple[str, ...] = (), before: str = "") -> Package:
    return Package(f"{before}pip install 'worldsize[{name}]'", modules, programs)


PACKAGES = {
    "DeepSpeed": _extra("deepspeed", "deepspeed", before="DS_BUILD_OPS=0 "),
    "FairScale": _extra("fairscale", "fairscale"),
    "HTA": _extra("hta", "hta"),
    "Horovod": Package("sh frameworks/build_horovod.sh", ("horovod",)),
    "Megatron-core": _extra("megatron", "megatron"),
    "mpi4py": _extra("mpi", "mpi4py", programs=("mpirun",)),
    "Prometheus": Package("apt-get install prometheus", programs=("prometheus",)),
    "py-spy": Package("pip install py-spy", programs=("py-spy",)),
    "Ray": _extra("ray", "ray", "pyarrow"),
    "Slurm": Package(
        f"apt-get install {' '.join(sorted({*slurm.PROGRAMS.values()}))}",
        programs=("slurmd", *slurm.PROGRAMS),
        version_flag="-V",
    ),
    "TensorFlow": _extra("tensorflow", "tensorflow"),
    "torchft": _extra("torchft", "torchft"),
}


def is_installed(package: str) -> bool:
    """Whether this machine has all modules and programs of a package."""
    wanted = PACKAGES[package]
    return all(map(util.find_spec, wanted.modules)) and all(map(find, wanted.programs))


def where(package: str) -> str:
    """Where the results of a package were measured, for a table: "here", or "recorded"."""
    return "here" if is_installed(package) else "recorded"


def result(lesson: str, package: str, measure: Callable[[], Any], what: str = "") -> Any:
    """Return what `measure` returns, or the recorded result if the package is not installed.

    A result is what JSON can hold: numbers, texts, lists, and dictionaries by text. `measure` returns None if this
    machine does not permit the measurement, as with py-spy in some containers. A line with the versions and the command
    that installs the package marks what was recorded. `what` names one of several results of a package.
    """
    key = f"{package}, {what}" if what else package
    installed = is_installed(package)
    found = measure() if installed else None
    if found is None:
        one = json.loads(_FILE.read_text(encoding="utf-8"))[lesson][key]
        problem = f"{package} gave no result" if installed else f"{package} is not installed"
        print(f"{problem}. Recorded with {one['made_with']}; to measure it: {PACKAGES[package].command}")
        return one["result"]
    if os.environ.get("WORLDSIZE_RECORD"):
        _record(lesson, key, package, found)
    return found


def _record(lesson: str, key: str, package: str, found: Any) -> None:
    """Replace one entry of the file, whose order and figures depend on nothing but the results."""
    everything = json.loads(_FILE.read_text(encoding="utf-8"))
    torch = metadata.version("torch").partition("+")[0]
    made_with = f"{package} {_version(package)} and torch {torch} on {num_cores()} cores"
    if (busy_cores() or 0) > MIN_BUSY_CORES:  # times are then longer than they need be
        made_with += " that other work kept busy"
    everything.setdefault(lesson, {})[key] = {"made_with": made_with, "result": _rounded(found)}
    text = json.dumps(everything, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    replace_file(_FILE, f"{text}\n".encode())


def _version(package: str) -> str:
    wanted = PACKAGES[package]
    if wanted.modules:
        return metadata.version(metadata.packages_distributions()[wanted.modules[0]][0])
    command = [find(wanted.programs[0]), wanted.version_flag]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return re.findall(r"\d+(?:\.\d+)+", said.stdout + said.stderr)[0]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
