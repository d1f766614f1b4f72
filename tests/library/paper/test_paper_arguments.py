"""Arguments of a run on paper that cannot be, each refused in a sentence before anything starts."""

import math

import pytest

import worldsize as ws


def does_nothing():
    pass


@pytest.mark.parametrize("number", [0, -5, "many", math.nan])
def test_tokens_that_are_none_are_refused(number):
    with pytest.raises(ValueError, match=r"tokens_per_step is .*; it must be a number above 0"):
        ws.paper(does_nothing, world_size=2, cluster="dgx-h100", tokens_per_step=number)


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        (3, {}, "paper takes a function; got a int"),
        (does_nothing, {"cluster": 5}, "cluster must be a cluster of worldsize.hardware"),
        (does_nothing, {"depths": 3}, "depths are 3: give two or more"),
        (does_nothing, {"depths": (1.5, 2)}, "give two or more"),
    ],
)
def test_arguments_of_another_type_are_refused_in_a_sentence(fn, options, message):
    with pytest.raises(ValueError, match=message):
        ws.paper(fn, 8, **{"world_size": 2, "cluster": "dgx-h100", **options})
