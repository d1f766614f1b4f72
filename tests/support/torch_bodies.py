"""torch's own tests of torch.distributed, run as ranks: on Gloo and on an emulated cluster.

`python -m torch_bodies` runs all of them both ways and writes docs/measured/torch_tests.csv; names that follow it are
run alone and printed. Of torch's tests only names and outcomes are kept.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import worldsize as ws

MODULE = "torch.testing._internal.distributed.distributed_test"
FILE, CLASS = "torch/testing/_internal/distributed/distributed_test.py", "DistributedTest"
TABLE = Path(__file__).parents[2] / "docs" / "measured" / "torch_tests.csv"
FIELDS = ("file", "class", "name", "real", "emulated", "version")
CLUSTER = "dgx-h100"
WORLD_SIZE, LARGE_WORLD_SIZE = 4, 8
SMALL = "skipped: small world"
_TIMEOUT_S = 300.0
# which the module reads on import; a rank's own WORLD_SIZE replaces this one
SETTINGS = {"BACKEND": "gloo", "INIT_METHOD": "env://", "WORLD_SIZE": str(LARGE_WORLD_SIZE)}
_REASONS = {  # of torch's, for which it skips a test; others are numbers of its issues
    "CUDA": "skipped: no CUDA",
    "small world size": SMALL,
    "NCCL": "skipped: no NCCL",
    "nccl": "skipped: no NCCL",
}


def names() -> list[str]:
    """Return the names of all tests, in order."""
    return [name for name in dir(_module().DistributedTest._DistTestBase) if name.startswith("test_")]


def _module() -> Any:
    import importlib

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    return importlib.import_module(MODULE)


def run_bodies(several: list[str]) -> list[str]:
    """Run the bodies of these tests one after the other on this rank, each in a new world; return how each ended."""
    import torch.distributed as dist

    outcomes = []
    for number, name in enumerate(several):
        if number:
            dist.destroy_process_group()
            dist.init_process_group(os.environ["BACKEND"])
        outcomes.append(_outcome(name, raises=len(several) == 1))
    return outcomes


def _outcome(name: str, raises: bool) -> str:
    import unittest

    from torch.testing._internal.common_distributed import TEST_SKIPS

    case = _case(name)
    codes = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    try:
        getattr(case, name)()
    except unittest.SkipTest as skip:
        return _skipped(str(skip))
    except SystemExit as end:
        if end.code in codes:
            return _skipped(codes[end.code])
        raise
    except Exception as error:
        if raises:  # then the launcher tells a culprit from its victims
            raise
        return f"failed: {type(error).__name__}: {error}"
    return "ok"


def _skipped(reason: str) -> str:
    return next((text for part, text in _REASONS.items() if part in reason), "skipped: by torch")


def _case(name: str) -> Any:
    """Return a test whose ranks are this run's, with a world and a barrier of torch's kind."""
    module = _module()
    import torch.distributed as dist
    from torch.testing._internal.common_utils import TestCase

    from worldsize.emulate.worker.backend import EmulatedGroup

    rank, world_size, folder = dist.get_rank(), dist.get_world_size(), Path(os.environ["TEMP_DIR"])
    (folder / "test_dir").mkdir(exist_ok=True)
    if dist.get_backend() != os.environ["BACKEND"]:
        dist.destroy_process_group()
        dist.init_process_group(os.environ["BACKEND"])

    if isinstance(dist.group.WORLD, EmulatedGroup):  # torch's profiler has no events of its communication
        module.PROFILING_SUPPORTED_BACKENDS = module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS = []

    class Body(module.DistributedTest._DistTestBase, TestCase):
        _world, _apart, _num_barriers = dist.group.WORLD, dist.new_group(), 0

        @property
        def world_size(self) -> str:
            return str(world_size)

        def _barrier(self, *_args: Any, **_options: Any) -> None:
            """Wait for all ranks without a call in the default group; torch's own does it through files."""
            if dist.is_initialized() and dist.group.WORLD is self._world:
                dist.barrier(self._apart)
                return
            Body._num_barriers += 1
            store = dist.FileStore(str(folder / f"{name} {self._num_barriers}"), world_size)
            store.add("came", 1)
            while store.add("came", 0) < world_size:
                time.sleep(0.01)

    case = Body(name)
    case.rank, case.file_name = rank, str(folder / "store")
    return case


def outcome(name: str, cluster: str | None, world_size: int = WORLD_SIZE) -> str:
    """Run one body on Gloo's ranks or on those of a cluster, and return how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TEMP_DIR": folder, "BACKEND": "gloo"}
        try:
            run = ws.run(
                run_bodies,
                [name],
                world_size=world_size,
                cluster=cluster,
                echo=False,
                timeout_s=_TIMEOUT_S,
                stalled_s=_TIMEOUT_S / 3,
            )
        except RuntimeError as error:
            return _failed(str(error))
    given = sorted({one for (one,) in run.values})
    return "ok" if "ok" in given else given[0]


_CAUSES = {  # by a part of the report
    "Collectives do not match": "collectives do not match",
    "name 'torchvision' is not defined": "no torchvision",
    "within 0.1 delta": "compares a timeout with Python's clock",
    "'emulated' != 'gloo'": "reads Gloo's name from DDP's log",
    "invalid tensor size": "Gloo exchanges equal sizes only",
    "have NCCL built in": "no NCCL",
    "list index out of range": "no CUDA",  # in the list of the ranks' GPUs
}


def _failed(report: str) -> str:
    """Shorten a report to what does not differ from run to run."""
    cause = next((cause for part, cause in _CAUSES.items() if part in report), None)
    return f"failed: {cause or re.sub('^Rank.* failed with ', '', report.splitlines()[0])[:60].strip()}"


def row(name: str) -> dict[str, str]:
    """Run one body both ways, on more ranks if it needs them, and return its row of the table."""
    import torch

    for world_size in (WORLD_SIZE, LARGE_WORLD_SIZE):
        emulated = outcome(name, CLUSTER, world_size)
        if emulated != SMALL:
            break
    real = emulated if emulated.startswith("skipped") else outcome(name, None, world_size)
    version = torch.__version__.partition("+")[0]
    return dict(zip(FIELDS, (FILE, CLASS, name, real, emulated, version), strict=True))


def main(chosen: list[str]) -> int:
    """Run the chosen bodies and print their rows; without names, run all and write the table."""
    os.environ |= SETTINGS | {"WORLDSIZE_PRELOAD": MODULE}  # so that ranks start with torch's tests imported
    rows = []
    for name in chosen or names():
        rows.append(row(name))
        print(",".join(rows[-1].values()), flush=True)
    if not chosen:
        others = [one for one in read_table() if one["file"] != FILE]
        TABLE.parent.mkdir(exist_ok=True)
        with TABLE.open("w", newline="") as file:
            table = csv.DictWriter(file, FIELDS, lineterminator="\n")
            table.writeheader()
            table.writerows([*rows, *others])
    return int(any(worse(one) for one in rows))


def read_table() -> list[dict[str, str]]:
    """Return the rows of the table."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def worse(one: dict[str, str]) -> bool:
    """Whether a body does on Gloo's ranks what it does not do emulated."""
    return one["real"] == "ok" != one["emulated"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
