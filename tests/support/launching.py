"""Runs as tests ask for them: quiet, on two ranks, with what they must give."""

import pytest

import worldsize as ws


def failed(fn, *args, world_size=2, timeout_s=30, error=ws.RankFailed, match=None, **kwargs):
    """The error of a run that must fail."""
    with pytest.raises(error, match=match) as caught:
        ws.run(fn, *args, world_size=world_size, timeout_s=timeout_s, echo=False, **kwargs)
    return caught.value


def values(fn, *args, world_size=2, **kwargs):
    return ws.run(fn, *args, world_size=world_size, echo=False, **kwargs).values
