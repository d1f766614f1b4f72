"""`python tests/bench/next_torch.py JUNIT`: which patches of docs/patches.md no longer hold, by the tests that failed.

A test that a row names fails when its patch is no longer needed, or no longer reaches what it patches.
"""

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import torch

PATCHES = Path(__file__).parents[2] / "docs" / "patches.md"


def main(report: Path) -> int:
    failed = read_failed(report)
    rows = list(read_rows(PATCHES.read_text(encoding="utf-8")))
    hit = [(what, sorted(files & failed.keys())) for what, files in rows if files & failed.keys()]
    hit.sort(key=lambda row: not row[0].startswith("**"))  # those that carry most come first
    print(f"torch {torch.__version__}: {sum(failed.values())} tests failed.")
    for what, files in hit:
        print(f"- {what}\n    look at {', '.join(files)}")
    print(
        f"{len(rows) - len(hit)} of {len(rows)} patches are as they were; {sum(not files for _, files in rows)} of them"
    )
    print("have no test and must be looked at by hand.")
    others = sorted(failed.keys() - {file for _, files in rows for file in files})
    print(f"Failures that belong to no patch: {', '.join(others) or 'none'}.")
    return int(bool(failed))


def read_failed(report: Path) -> dict[str, int]:
    """Read how many tests failed in each file that has any, from a JUnit report."""
    failed: dict[str, int] = {}
    for case in ET.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            (file,) = re.findall(r"test_\w+", case.get("classname", ""))[:1] or ["collection"]
            failed[f"{file}.py"] = failed.get(f"{file}.py", 0) + 1
    return failed


def read_rows(text: str) -> Iterator[tuple[str, set[str]]]:
    """Read what each row of the tables patches, and the test files that watch it."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 4 and not set(cells[0]) <= set("- ") and cells[0] != "What":
            yield f"{cells[0]} ({cells[1]})", set(re.findall(r"test_\w+\.py", cells[3]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
