"""`python tests/bench/soak.py [--runs N]`: the fast tests again and again, beside a process per core that burns time.

Each run has an order of tests and a seed of hashes of its own. A soak that was stopped goes on where it stopped, as
long as the commit is the same. The exit status is 1 if any test ever failed.
"""

import argparse
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from bench_honest import burning
from repository import ROOT

KEPT = ROOT / "build" / "soak.json"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadgroup", "--no-loadscope-reorder"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    num_runs = parser.parse_args().runs
    kept = read_kept()
    for seed in range(len(kept["runs"]), num_runs):
        kept["runs"].append(run_once(seed))
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept, indent=1))
    return summarise(kept["runs"])


def read_kept() -> dict[str, list]:
    """Read the runs of this commit that are kept."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return kept if kept.get("commit") == commit else {"commit": commit, "runs": []}


def run_once(seed: int) -> dict[str, str]:
    """Run the fast tests once; return the tests that failed, each with how."""
    report = ROOT / "build" / f"soak-{seed}.xml"
    order = ["--random-order-bucket=global", f"--random-order-seed={seed}", f"--junitxml={report}"]
    report.unlink(missing_ok=True)
    with burning(os.cpu_count() or 1):
        status = subprocess.run([*PYTEST, *order], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": str(seed)}).returncode
    failed = read_failed(report)
    if status and not failed:
        failed = {"the session": f"pytest ended with status {status}"}
    print(f"run {seed}: {len(failed)} failed", flush=True)
    return failed


def read_failed(report: Path) -> dict[str, str]:
    """Read which tests a JUnit report calls failed or broken, each with the text of its failure."""
    if not report.exists():
        return {}
    failed = {}
    for case in ET.parse(report).iter("testcase"):
        for outcome in case.iter():
            if outcome.tag in ("failure", "error"):
                failed[f"{case.get('classname')}::{case.get('name')}"] = (outcome.text or "")[-4000:]
    return failed


def summarise(runs: list[dict[str, str]]) -> int:
    """Print which tests ever failed, the most frequent first; return the exit status."""
    seeds = defaultdict(list)
    for seed, failed in enumerate(runs):
        for name in failed:
            seeds[name].append(seed)
    for name, failing in sorted(seeds.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(failing)} of {len(runs)} runs: {name} (seeds {', '.join(map(str, failing))})")
    print(f"{sum(bool(failed) for failed in runs)} of {len(runs)} runs failed; {KEPT.relative_to(ROOT)} has the texts.")
    return int(bool(seeds))


if __name__ == "__main__":
    sys.exit(main())
