"""What a student sees of ranks that a cell of their own launches."""

import nbformat
import pytest

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


def test_a_failing_rank_is_reported_and_torchrun_prints_by_rank(open_notebook, lab, screenshots):
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# My own experiments")])
    empty.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(empty, lab.course / "scratch.ipynb")
    scratch = open_notebook("scratch.ipynb")

    report = scratch.add_and_run(BROKEN.strip())
    assert report.splitlines()[:3] == [
        "RankFailed: Rank 1 of 2 failed with ZeroDivisionError: division by zero",
        "  the cell, line 5, in share",
        "    return cake / (1 - dist.get_rank())",
    ]
    assert "Traceback" not in report and "launch" not in report

    assert scratch.add_and_run("%load_ext worldsize").strip() == ""
    printed = scratch.add_and_run(MAGIC.strip())
    assert "[rank 0] I am 0 of 2" in printed and "[rank 1] I am 1 of 2" in printed
    scratch.page.screenshot(path=screenshots / "launching.png")
