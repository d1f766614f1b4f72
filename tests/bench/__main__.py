"""`python tests/bench [PART ...]`: measures every figure that the project claims, or those of the parts named."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measurements import main

main()
