"""`python tests/bench/under_load.py COMMAND ...`: run a command beside a process per core that only burns time."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from bench_honest import burning

with burning(os.cpu_count() or 1):
    done = subprocess.run(sys.argv[1:])
sys.exit(done.returncode)
