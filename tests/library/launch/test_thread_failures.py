"""Threads of a rank that end with an exception: the run goes on, and says so."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from launching import failed, run
from test_view import ranks

import worldsize as ws
from worldsize.launch.display import live
from worldsize.launch.display.view import Plain
from worldsize.launch.protocol.failure import Failure
from worldsize.launch.reports.text import describe_threads
from worldsize.source import Line


def in_thread(fn, name):
    thread = threading.Thread(target=fn, name=name, daemon=True)
    thread.start()
    thread.join()


def load():
    raise ValueError("no such file")


def with_threads():
    with ThreadPoolExecutor() as pool:
        handed_on = pool.submit(load).exception()
    in_thread(sys.exit, "leaving")
    if dist.get_rank() == 1:
        in_thread(load, "loader")
    dist.barrier()
    return str(handed_on)


LINES = f"  test_thread_failures.py, line {load.__code__.co_firstlineno + 1}, in load\n    raise ValueError"


@pytest.mark.parametrize("options", [{}, {"cluster": "dgx-h100"}], ids=["real", "emulated"])
def test_a_run_says_which_threads_failed_and_with_which_line(options):
    done = run(with_threads, world_size=2, echo=False, **options)
    assert done.values == ["no such file"] * 2
    (warning,) = done.warnings
    assert warning.startswith(f"Rank 1, thread loader ended with ValueError: no such file\n{LINES}")
    assert repr(done).endswith(f"\nWarning: {warning}")


def test_a_run_that_waits_for_a_failed_thread_says_so():
    def on_rank():
        in_thread(load, "loader")
        threading.Event().wait()

    error = failed(on_rank, world_size=1, timeout_s=3, error=ws.RunTimeout)
    assert f"Rank 0, thread loader ended with ValueError: no such file\n{LINES}" in str(error)


def test_threads_that_fail_alike_are_described_together():
    alike = Failure(0, "KeyError", "a", [Line("/tmp/a.py", 3, "f", "g()")])
    assert describe_threads([(0, "t", alike), (1, "t", Failure(0, "OSError", "")), (2, "t", alike)]) == [
        "Ranks 0 and 2, thread t ended with KeyError: a\n  a.py, line 3, in f\n    g()",
        "Rank 1, thread t ended with OSError",
    ]


def test_views_end_with_the_warnings(capsys, monkeypatch):
    shown = ranks(rank0="")
    shown.warnings = ["Rank 0, thread <t> ended with KeyError"]
    Plain().end(shown)
    assert capsys.readouterr().out == "Warning: Rank 0, thread <t> ended with KeyError\n"
    bundles = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: bundles.append(bundle))
    live.Live().end(shown)
    assert bundles[0]["text/plain"].endswith("\nWarning: Rank 0, thread <t> ended with KeyError")
    assert "Warning: Rank 0, thread &lt;t&gt; ended with KeyError" in bundles[0]["text/html"]
