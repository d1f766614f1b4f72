"""`import worldsize` imports nothing else, its names come when they are used, and arithmetic needs no package."""

import copy
import subprocess
import sys

import cloudpickle
import pytest
from repository import ROOT

import worldsize as ws

# what the calculators of the site run on, in a browser that has the standard library only
ARITHMETIC = (
    *("controls", "event", "hardware", "intervals", "models", "operators", "outages", "palette", "planning", "pricing"),
    *("published", "slow_steps", "timeline", "units"),
)
BARE = [sys.executable, "-I", "-S", "-c"]  # without any installed package
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['resource'] = sys.modules['fcntl'] = None; "


def test_importing_it_imports_nothing_else():
    program = START + "import worldsize; print(*sorted(name for name in sys.modules if name.startswith('worldsize')))"
    assert subprocess.run([*BARE, program], capture_output=True, text=True, check=True).stdout == "worldsize\n"


def test_arithmetic_needs_the_standard_library_alone():
    program = START + "".join(f"import worldsize.{name}; " for name in ARITHMETIC) + "print(len(sys.modules) > 50)"
    done = subprocess.run([*BARE, program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("name", ws.__all__)
def test_each_name_is_there(name):
    assert name in dir(ws) and getattr(ws, name).__name__ == name


def test_a_function_is_not_replaced_by_the_module_that_is_called_so_too():
    program = (
        "import worldsize.paper.record, worldsize.calibrate.fits, worldsize.units; import worldsize as ws; "
        "print(ws.paper.__name__, callable(ws.paper), callable(ws.calibrate), ws.units.KB, ws.hardware.__name__)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "paper True True 1000 worldsize.hardware\n"


def test_a_function_that_uses_it_can_be_carried_to_another_process():
    assert cloudpickle.loads(cloudpickle.dumps(ws)) is ws
    assert copy.deepcopy({"module": ws})["module"] is ws


def test_a_name_that_is_not_there_is_an_error_in_words():
    with pytest.raises(AttributeError, match=r"^module 'worldsize' has no attribute 'nothing'$"):
        _ = ws.nothing
