"""`python tests/support/coverage_by_folder.py FILE`: print the share of lines that ran, by package.

Code in ranks and commands that tests start counts. Code in a jail does not, because it cannot write its coverage.
The exit status is 1 below 80% of all lines, or 60% of a package's.
"""

import json
import sys
from collections import Counter
from pathlib import Path

LEAST_OF_ALL, LEAST_OF_A_PACKAGE = 0.8, 0.6

num_lines, num_run = Counter(), Counter()
for name, measured in json.loads(Path(sys.argv[1]).read_text())["files"].items():
    for package in ("all", "/".join(Path(name).parts[:2]) if len(Path(name).parts) > 2 else str(Path(name).parent)):
        num_lines[package] += measured["summary"]["num_statements"]
        num_run[package] += measured["summary"]["covered_lines"]
shares = {package: num_run[package] / max(num, 1) for package, num in num_lines.items()}
for package, share in sorted(shares.items()):
    print(f"{package:36} {share:4.0%} of {num_lines[package]} lines")
short = [name for name, share in shares.items() if share < (LEAST_OF_ALL if name == "all" else LEAST_OF_A_PACKAGE)]
print(f"Too few: {', '.join(short)}." if short else "No package has too few.")
sys.exit(bool(short))
