"""`python tests/bench/on_gpus.py [--stand-in] [PART ...]`: run every path that uses GPUs, and record what it gives.

Without a GPU it says so and ends with status 3. `--stand-in` runs the same parts on processor cores, into
build/measured, to try the recording; the site refuses such a file among the records of GPUs.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import torch
from gpu_parts import PARTS, Setting, Skipped
from repository import ROOT
from rich.console import Console

from autograder.bench.recorded import FOLDER, Record, RecordPart, write
from worldsize.bench import Machine, describe

NO_GPU = 3
_MOST_RANKS = 4  # what the weeks are written for
_WHY = 2000  # characters of an error, from its end


def main() -> int:
    """Run the parts, show how each ended, and write the record. Exit status 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python tests/bench/on_gpus.py", description=__doc__.splitlines()[0])
    parser.add_argument("--stand-in", action="store_true", help="on processor cores, to try the recording")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    given = parser.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    num_gpus = torch.cuda.device_count()
    if not num_gpus and not given.stand_in:
        print(
            f"No GPU: torch {torch.__version__} sees no CUDA device here, so nothing was run and nothing was recorded."
        )
        return NO_GPU
    num_ranks = 2 if given.stand_in else max(size for size in (1, 2, _MOST_RANKS) if size <= num_gpus)
    setting = Setting(num_ranks, "gloo" if given.stand_in else "nccl")
    console, parts = Console(), []
    for name in given.parts or PARTS:
        console.print(f"[bold]{name}[/], {num_ranks} ranks on {setting.backend}")
        parts.append(run_part(name, setting))
        console.print(f"  {parts[-1].outcome} in {parts[-1].took_s:.0f} s {parts[-1].why[-300:]}", markup=False)
    record = Record(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        is_stand_in=given.stand_in,
        machine=machine(num_gpus),
        num_ranks=num_ranks,
        backend=setting.backend,
        parts=parts,
    )
    folder = ROOT / ("build/measured" if given.stand_in else FOLDER)
    console.print(f"Recorded: {write(record, folder)}", soft_wrap=True)
    return int(any(part.outcome == "failed" for part in parts))


def machine(num_gpus: int) -> Machine:
    """This machine; its GPUs by torch's names where the driver's own tool is absent."""
    found = describe()
    return (
        found if found.gpus else found.model_copy(update={"gpus": [*map(torch.cuda.get_device_name, range(num_gpus))]})
    )


def run_part(name: str, setting: Setting) -> RecordPart:
    """One part, whatever comes of it: what the others give is worth minutes."""
    start_s = time.monotonic()
    outcome, why, found = "passed", "", {}
    try:
        found = PARTS[name](setting)
    except Skipped as reason:
        outcome, why = "skipped", str(reason)
    except Exception:
        outcome, why = "failed", traceback.format_exc()[-_WHY:]
    return RecordPart(name=name, outcome=outcome, why=why, took_s=round(time.monotonic() - start_s, 1), **found)


if __name__ == "__main__":
    sys.exit(main())
