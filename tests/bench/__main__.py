"""`python tests/bench [--smallest] [PART ...]`: measure all that the project claims, or these parts of it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurements import main

main()
