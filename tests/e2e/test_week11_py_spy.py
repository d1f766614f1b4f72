"""Week 11's other commands for a live process, `py-spy record` and `--native`, on one that works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
def unpacks_archives():
    return sum(number * number for number in range(2000))

while True:
    unpacks_archives()
"""


@pytest.mark.parametrize("more", [[], ["--native"]], ids=["python", "native"])
def test_a_flame_graph_names_where_time_goes(more, tmp_path):
    script, flames = tmp_path / "script.py", tmp_path / "flame.svg"
    script.write_text(SCRIPT)
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    assert spy, "py-spy is one of the tests' packages"
    # a program that py-spy starts may be looked into without further rights, and is ended by it
    command = [spy, "record", "-o", str(flames), "--duration", "1", *more, "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "unpacks_archives" in flames.read_text()
