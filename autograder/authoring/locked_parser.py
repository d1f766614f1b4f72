"""Python's parser behind a lock, one thread at a time."""

import ast
import threading

_TURN = threading.Lock()


def parse(source: str) -> ast.Module:
    """Parse Python source.

    Before 3.11.8, CPython has one depth counter for all threads (python/cpython issue 106905): if two threads parse at
    once, one may get a SystemError for valid source.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as for ast.parse.
    """
    with _TURN:
        return ast.parse(source)
