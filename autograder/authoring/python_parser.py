"""Python's parser, one thread at a time."""

import ast
import threading

_TURN = threading.Lock()


def parse(source: str) -> ast.Module:
    """The syntax tree of Python source.

    Before 3.11.8, CPython counts the depth of all threads' trees in one place (python/cpython issue 106905): where two
    parse at once, one may get a SystemError for source that is right.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as for ast.parse.
    """
    with _TURN:
        return ast.parse(source)
