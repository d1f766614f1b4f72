"""Handling of missing requirements: a test is skipped, or fails if WORLDSIZE_REQUIRE names the requirement."""

import os
from typing import NoReturn

import pytest


def is_required(need: str) -> bool:
    """Whether this requirement must be met, as in CI: WORLDSIZE_REQUIRE holds names such as browser,sandbox,images."""
    return need in os.environ.get("WORLDSIZE_REQUIRE", "").split(",")


def give_up(need: str, reason: str) -> NoReturn:
    """Skip the running test, or fail it if the requirement must be met."""
    (pytest.fail if is_required(need) else pytest.skip)(reason)
