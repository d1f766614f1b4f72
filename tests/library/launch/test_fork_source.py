"""A process that many ranks are forked from."""

import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest

from worldsize.launch.worker import fork_source

PROGRAM = """
from worldsize.launch.worker import fork_source
held = [str(number) * 50 for number in range(200_000)]
fork_source.prepare()
print(open("/proc/self/smaps_rollup").read())
"""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_its_memory_lies_in_huge_pages():
    version = tuple(map(int, re.findall(r"\d+", Path("/proc/sys/kernel/osrelease").read_text())[:2]))
    if version < (6, 1) or not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this kernel gathers no huge pages when asked")
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    own, huge = (int(re.search(rf"^{name}: +(\d+) kB", said, re.M)[1]) for name in ("Anonymous", "AnonHugePages"))
    assert own > 60_000 and huge > own / 4  # what lies between mapped files stays in small ones


def test_its_objects_are_left_alone(monkeypatch):
    monkeypatch.setattr(fork_source, "_gather", lambda: None)
    try:
        fork_source.prepare()
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
