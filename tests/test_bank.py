"""Every lab has known answers enough; `make verify` grades them all."""

from pathlib import Path

import pytest

from autograder.build import find_sources
from autograder.verify import cases

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("lab", [path.parent.name for path in find_sources(ROOT).labs])
def test_bank_is_wide_enough(lab: str) -> None:
    names = [case.name for case in cases(ROOT, lab)]
    assert sum(name.startswith("wrong/") for name in names) >= 8
    assert sum(name.startswith("right/") for name in names) >= 3
