"""What has to stay hidden leaves a rank in no message, however the rank comes to know it."""

import pytest
from tiny_lab import needs_jail, write_checks

from autograder.judging.report import Outcome
from autograder.judging.request import JudgeRequest, judge

pytestmark = needs_jail
HEAD = """
import torch

from autograder.checks import points
from worldsize.check import expect_close


def on_rank(student, name, hidden):
    return getattr(student, name)()
"""
CHECK = '''

@points(1, cell="leaks")
def check_{name}(student, rng):
    """It holds."""
    hidden = "".join(["the hi", "dden so", "urce 5955"])
    values = student.{how}(on_rank, "{name}", hidden, world_size=2){values}
    expect_close(values[0], torch.ones(2), "the result")
'''
SETUP = """
import os, sys, signal
import torch
import torch.distributed as dist
import worldsize.launch.protocol.codec as codec
from worldsize.launch.protocol import failure
from worldsize.source import Line

def known():
    frame = sys._getframe(1)
    while "hidden" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["hidden"]
"""
FAILS = (
    "    failure.of_exception = lambda rank, error, time_ns: failure.Failure(rank, {}, time_ns)\n    raise ValueError"
)
WAYS = {
    "text": "    raise ValueError(known())",
    "quoted": "    raise AttributeError(f\"'Tensor' object has no attribute '{known()}'\")",
    "kind": "    raise type(known(), (Exception,), {})",
    "note": "    error = ValueError('x')\n    error.add_note(known())\n    raise error",
    "cause": "    raise ValueError('x') from KeyError(known())",
    "syntax": "    raise SyntaxError(known(), ('<cell text>', 1, 1, known()))",
    "exits": "    sys.exit(known())",
    "said_kind": FAILS.format("known(), 'x', []"),
    "said_signal": FAILS.format("'SIGXCPU', known(), []"),
    "said_limit": FAILS.format("'output limit', known(), []"),
    "said_mismatch": FAILS.format("'a mismatched collective', known(), []"),
    "said_line": FAILS.format("'ValueError', 'x', [Line('<cell text>', 2, known(), known())]"),
    "said_file": FAILS.format("'ValueError', 'x', [Line(f'<cell {known()}>', 2, 'x', 'x')]"),
    "value": "    return known()",
    "key": "    return {known(): 1}",
    "shape": "    return [known()]",
    "message": "    codec.encode = lambda value: known().encode()\n    return 1",
    "op": (
        "    hidden = known()\n"
        "    from worldsize.emulate.worker import backend\n"
        "    client = backend.client()\n"
        "    if client is None:\n"
        "        raise ValueError(hidden)\n"
        "    client.post(hidden, hidden, [0, 1], b'', lambda body: None, None, dtype='float32', num_items=0)"
    ),
    "waits": (
        "    hidden = known()\n"
        "    def barrier(text):\n"
        "        dist.recv(torch.ones(1), src=1 - dist.get_rank())\n"
        "    barrier(hidden)"
    ),
}


@pytest.mark.parametrize("how", ["run", "emulated"])
def test_nothing_hidden_is_in_a_message(tmp_path, how):
    names = [name for name in WAYS if how == "emulated" or name != "waits"]  # on real sockets that takes its time
    values = ".values" if how == "emulated" else ""
    text = HEAD + "".join(CHECK.format(name=name, how=how, values=values) for name in names)
    cells = [("setup", SETUP), *((name, f"def {name}():\n{WAYS[name]}") for name in names)]
    for check in judge(JudgeRequest(checks=write_checks(tmp_path / "course", text), cells=cells, call_s=60)).checks:
        assert not check.outcome.holds and check.outcome is not Outcome.FAULT, check
        assert not any(word in check.message for word in ("hidden so", "dden source", "5955")), check
