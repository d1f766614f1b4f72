"""What the tests of several weeks share."""

from collections.abc import Iterator

import pytest
from executed import UntouchedWeek


@pytest.fixture(scope="module")
def untouched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UntouchedWeek]:
    """The untouched week of the module's `SCRIPT`."""
    with UntouchedWeek(request.module.SCRIPT, tmp_path_factory.mktemp("untouched")) as week:
        yield week
