"""Folders that launchers leave behind when they are killed, and those that are still in use."""

import os
import subprocess
import sys

from worldsize.launch.launcher.scratch import ScratchFolder

KILLED = """
import os, signal, sys
from worldsize.launch.launcher.scratch import ScratchFolder
made = ScratchFolder(sys.argv[1])
open(os.path.join(made.path, "store"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_launcher_has_left_is_removed_by_the_next(tmp_path):
    (tmp_path / "worldsize-of-another-kind").mkdir()
    held = ScratchFolder(str(tmp_path))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(os.listdir(tmp_path)) == 3, "each removed what the one before had left"
    with ScratchFolder(str(tmp_path)) as folder:
        assert sorted(os.listdir(tmp_path)) == sorted(
            ["worldsize-of-another-kind", os.path.basename(held.path), os.path.basename(folder)]
        )
    held.remove()
    assert os.listdir(tmp_path) == ["worldsize-of-another-kind"]
