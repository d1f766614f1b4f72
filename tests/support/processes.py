"""Queries about processes for tests."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

# what a rank runs that is to be ended: reports its process and its parent's, then stays
STAY = """
def stay(folder, rank):
    import os, signal
    from pathlib import Path

    path = Path(folder, f"{rank}.tmp")
    path.write_text(f"{os.getpid()} {os.getppid()}")
    path.rename(path.with_suffix(".pids"))
    while True:
        signal.pause()
"""


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait until the condition holds; return False if it does not within the time limit."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def are_gone(pids: Iterable[int], within_s: float = 20.0) -> bool:
    """Wait until none of the processes runs; return False if one still does. A zombie counts as ended."""
    return wait_until(lambda: not any(_is_running(pid) for pid in pids), within_s)


def told_pids(folder: Path, num_ranks: int, within_s: float = 60.0) -> set[int]:
    """The processes that `stay` reported: the ranks' and their parent's."""
    assert wait_until(lambda: len(list(folder.glob("*.pids"))) == num_ranks, within_s), "the ranks did not come up"
    return {int(pid) for path in folder.glob("*.pids") for pid in path.read_text().split()}


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
