"""What a test does without what it needs: it is skipped, or fails where WORLDSIZE_REQUIRE names that."""

import os
from typing import NoReturn

import pytest


def is_required(need: str) -> bool:
    """True where this need must be met, as in CI: WORLDSIZE_REQUIRE holds names such as browser,sandbox,images."""
    return need in os.environ.get("WORLDSIZE_REQUIRE", "").split(",")


def give_up(need: str, reason: str) -> NoReturn:
    """Skip the running test, or fail it where the need is required."""
    (pytest.fail if is_required(need) else pytest.skip)(reason)
