"""A part of the library that is out of reach for student code stays in reach of the library itself."""

import subprocess
import sys

PROGRAM = """
from autograder.judging.jail.bans import put_out_of_reach
from worldsize.emulate import Forbidden

put_out_of_reach("worldsize.audit", "write it yourself")
import worldsize as ws

print(ws.run.__name__, ws.compare.__name__)
for banned in ("import worldsize.audit.rules", "from worldsize import audit; audit.Finding"):
    try:
        exec(banned)
    except Forbidden as error:
        print(error)
"""


def test_a_ban_on_the_audit_leaves_what_uses_it_in_reach():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("run compare\nwrite it yourself\nwrite it yourself\n", "")
