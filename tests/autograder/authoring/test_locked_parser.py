"""Many threads read submissions at once."""

import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from autograder.authoring import locked_parser

SOURCE = "x = [(1 + (2 + (3 + (4 + 5)))) for a in (b, c)]\n" * 5


@pytest.fixture
def other_threads_come_in():
    """While a tree is made, memory is collected often, and then other threads have their turn."""
    usual, yields = gc.get_threshold(), lambda phase, info: time.sleep(0.0001)
    gc.callbacks.append(yields)
    gc.set_threshold(5)
    yield
    gc.set_threshold(*usual)
    gc.callbacks.remove(yields)


def test_threads_that_parse_at_once_all_get_their_tree(other_threads_come_in):
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(locked_parser.parse, [SOURCE] * 200))
    assert {ast.unparse(tree) for tree in trees} == {ast.unparse(ast.parse(SOURCE))}
