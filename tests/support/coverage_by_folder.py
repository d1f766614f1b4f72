"""`python tests/support/coverage_by_folder.py FILE`: print the share of lines that ran, by folder.

What runs in a jail or in a process that a warm one has forked is not seen, so these are lower bounds.
"""

import json
import sys
from collections import Counter
from pathlib import Path

num_lines, num_run = Counter(), Counter()
for name, found in json.loads(Path(sys.argv[1]).read_text())["files"].items():
    folder = str(Path(name).parent)
    num_lines[folder] += found["summary"]["num_statements"]
    num_run[folder] += found["summary"]["covered_lines"]
for folder, num in sorted(num_lines.items()):
    print(f"{folder:36} {num_run[folder] / max(num, 1):4.0%} of {num} lines")
