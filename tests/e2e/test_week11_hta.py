"""Week 11's cells with Holistic Trace Analysis itself: traces of two real ranks, and an emulated step as kernels."""

import importlib.util

from needs import give_up
from repository import ROOT
from symptoms import lesson
from traces import expect_read_by_hta

from autograder.authoring.scripts import read_week

SCRIPT = ROOT / "weeks" / "week11_find_the_bottleneck.py"


def test_hta_reads_real_traces_and_finds_the_emulated_steps_overlap(capsys):
    if importlib.util.find_spec("hta") is None:
        give_up("hta", "needs HolisticTraceAnalysis: pip install -e '.[hta]'")
    names, cells = dict(lesson()), {cell.id: cell.source for cell in read_week(SCRIPT).cells}
    _, names["healthy"] = names["measured"](names["HEALTHY"])
    for name in ("traced_steps", "chrome_trace", "as_kernels", "read_by_hta", "by_hta"):
        exec(compile(cells[name], name, "exec"), names)
    expect_read_by_hta(capsys.readouterr().out)
