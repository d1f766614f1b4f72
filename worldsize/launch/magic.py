"""`%%torchrun`: a notebook cell as a script under torchrun."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from worldsize.launch import command
from worldsize.launch.launcher.scratch import ScratchFolder
from worldsize.launch.reports.result import Run
from worldsize.source import CELL_FILE

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_TIMEOUT_S, _STALLED_S = 24 * 3600, 20  # a cell has the notebook's own stop button


def load(shell: InteractiveShell) -> None:
    """Register `%%torchrun` with this IPython."""
    shell.register_magic_function(torchrun, magic_kind="cell", magic_name="torchrun")  # pyright: ignore[reportCallIssue]


def torchrun(line: str, cell: str) -> Run | None:
    """Run this cell's text as a script under torchrun; the line holds torchrun's own flags.

    `--cluster dgx-h100` runs it on that emulated cluster. Words after ` -- ` are the script's arguments. With --help,
    torchrun prints its flags, and nothing runs.
    """
    words = shlex.split(line)
    flags, args = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    cluster, flags = command.take_cluster(flags)
    with ScratchFolder() as folder:
        script = Path(folder) / CELL_FILE
        script.write_text("\n" + cell, encoding="utf-8")  # the notebook counts the magic's own line too
        try:
            return command.run_script(
                flags, script, args, _TIMEOUT_S, _STALLED_S, {"PYTHONPATH": _search_path()}, True, cluster
            )
        except SystemExit:  # how the parser ends --help
            return None


def _search_path() -> str:
    """PYTHONPATH with the notebook's folder in front, so that a cell can import what its notebook can."""
    return os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
