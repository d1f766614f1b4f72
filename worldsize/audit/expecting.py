"""What a program says of itself: that its ranks are meant to differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_depth = [0]


@contextlib.contextmanager
def expect_different() -> Iterator[None]:
    """Let an audit expect that weights differ between ranks in the steps inside, such as an ensemble's.

    Without an audit it does nothing.
    """
    _depth[0] += 1
    try:
        yield
    finally:
        _depth[0] -= 1


def is_expected() -> bool:
    """Whether the program is inside `expect_different`."""
    return _depth[0] > 0
