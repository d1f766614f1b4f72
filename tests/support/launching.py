"""Launching runs for tests: quiet, on two ranks, with the expected outcome."""

import pytest

import worldsize as ws
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch


def run(fn, *args, **options):
    """Run a function on ranks, with any option of a `Spec`."""
    return launch(Spec(fn, args, **options))


def failed(fn, *args, world_size=2, timeout_s=30, error=ws.RankFailed, match=None, **options):
    """Run a function that must fail, and return the error."""
    with pytest.raises(error, match=match) as caught:
        run(fn, *args, world_size=world_size, timeout_s=timeout_s, echo=False, **options)
    return caught.value


def values(fn, *args, world_size=2, **options):
    return run(fn, *args, world_size=world_size, echo=False, **options).values
