"""Parts of a lab's own solution for its hidden checks: what is taken, that nothing runs, and what ranks get."""

import cloudpickle

from autograder.checks import take_from_solution

SCRIPT = """\
# %% setup
import not_there
from typing import NamedTuple

RATE = 2
loaded = open("not here")
print("loaded")


# %% total tags=["solution"]
class Pair(NamedTuple):
    one: int
    other: int


def total(pair: Pair) -> int:
    ### BEGIN SOLUTION
    return RATE * sum(pair)
    ### END SOLUTION


def secret():
    return RATE


# %% check_total points=1
assert total(Pair(1, 2)) == 7
"""


def test_definitions_are_taken_and_nothing_runs(tmp_path, capsys):
    (tmp_path / "lab.py").write_text(SCRIPT)
    pair, total, rate = take_from_solution(tmp_path / "lab.py", "Pair", "total", "RATE")
    assert (total(pair(1, 2)), rate) == (6, 2)
    assert capsys.readouterr().out == ""


def test_ranks_get_the_parts_that_are_used_and_no_others(tmp_path):
    (tmp_path / "lab.py").write_text(SCRIPT)
    (total,) = take_from_solution(tmp_path / "lab.py", "total")
    pickled = cloudpickle.dumps(lambda: total((1, 2)))
    assert cloudpickle.loads(pickled)() == 6
    assert b"secret" not in pickled
