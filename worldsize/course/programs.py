"""Where this machine has a program."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def find(program: str) -> str:
    """Find a program beside this Python, on PATH, or where daemons are; empty if it is not installed."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"]
    return shutil.which(program, path=os.pathsep.join(folders)) or ""
