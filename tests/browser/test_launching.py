"""What a student sees of ranks that a cell of their own launches."""

import nbformat
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

BROKEN = """
import torch.distributed as dist
import worldsize as ws

def share(cake):
    return cake / (1 - dist.get_rank())

ws.run(share, 12, world_size=2, backend="gloo")
"""
MAGIC = """%%torchrun --nproc-per-node 2
import os
print("I am", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""


def open_scratch(open_notebook, lab):
    """An empty notebook, open."""
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# My own experiments")])
    empty.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(empty, lab.course / "scratch.ipynb")
    return open_notebook("scratch.ipynb")


def test_a_failing_rank_is_reported_and_torchrun_prints_by_rank(open_notebook, lab, screenshots):
    scratch = open_scratch(open_notebook, lab)
    report = scratch.add_and_run(BROKEN.strip())
    lines = report.splitlines()
    assert lines[0].startswith("2 ranks on Gloo (") and lines[1:3] == [
        "rank 0: done",
        "rank 1: failed: ZeroDivisionError: division by zero",
    ]
    assert lines[3:6] == [
        "RankFailed: Rank 1 of 2 failed with ZeroDivisionError: division by zero",
        "  the cell, line 5, in share",
        "    return cake / (1 - dist.get_rank())",
    ]
    assert "Traceback" not in report and "launch" not in report

    assert scratch.add_and_run("%load_ext worldsize").strip() == ""
    printed = scratch.add_and_run(MAGIC.strip())
    assert "[rank 0] I am 0 of 2" in printed and "[rank 1] I am 1 of 2" in printed
    scratch.page.screenshot(path=screenshots / "launching.png")


HANGS = """
import time
import torch
import torch.distributed as dist
import worldsize as ws

def step():
    print("rank", dist.get_rank(), "is here", flush=True)
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(4))

ws.run(step, world_size=3, backend="gloo", timeout_s=120)
"""


def test_the_live_view_tells_each_rank_s_state_and_its_button_stops_the_run(open_notebook, lab, screenshots):
    scratch = open_scratch(open_notebook, lab)
    cell = scratch.add_and_start(HANGS.strip())
    out = cell.locator(".jp-OutputArea")
    expect(out).to_contain_text("rank 0: waits in collective 1, all_reduce (float32 [4])")
    expect(out).to_contain_text("rank 1: running")
    out.get_by_role("tab", name="rank 2").click()
    expect(out.locator("pre:visible")).to_have_text("rank 2 is here\n")
    scratch.page.screenshot(path=screenshots / "live_view.png")

    out.get_by_role("button", name="Stop").click()
    scratch.wait_for(cell)
    report = out.inner_text()
    assert "RunStopped: Stopped by the stop button." in report
    assert (
        "Ranks 0 and 2 wait for rank 1 in collective 1, all_reduce (float32 [4]); rank 1 is at the cell, line 9"
        in report
    )
    assert out.get_by_role("button").count() == 0, "the still has no button"
    assert "rank 0: waits in collective 1" in report and "SIGKILL" not in report, "how it was, not how it was ended"
    assert "[rank 2] rank 2 is here" in report, "the still shows what was printed"
    scratch.page.screenshot(path=screenshots / "live_view_still.png")


PRINTS_FOR_EVER = """
def flood():
    while True:
        print("again and again")

ws.run(flood, world_size=2, backend="gloo", timeout_s=120)
"""


def test_a_flood_of_output_leaves_the_page_alive_and_the_button_works(open_notebook, lab):
    scratch = open_scratch(open_notebook, lab)
    scratch.add_and_run("import worldsize as ws")
    cell = scratch.add_and_start(PRINTS_FOR_EVER.strip())
    out = cell.locator(".jp-OutputArea")
    expect(out).to_contain_text("again and again")
    out.get_by_role("tab", name="rank 1").click()
    out.get_by_role("button", name="Stop").click()
    scratch.wait_for(cell)
    report = out.inner_text()
    assert "RunStopped: Stopped by the stop button." in report and len(report) < 200_000
