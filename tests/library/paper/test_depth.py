"""The peak of a deep program from records with few layers, where other places peak than in these."""

import pytest

import worldsize as ws
from worldsize.paper.alignment import _matched, _slid


def checkpointed(num_layers, width, num_tokens, num_words, num_steps):
    """Few layers hold most at the head, many in the update."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(num_layers)
    )
    head = nn.Linear(width, num_words)
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], foreach=True)
    for _ in range(num_steps):
        hidden = torch.ones(num_tokens, width)
        for layer in layers:
            hidden = hidden + checkpoint(layer, hidden, use_reentrant=False)
        head(hidden).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


OPTIONS = {"world_size": 8, "cluster": "dgx-h100", "echo": False}


def peaks_of_records(run):
    return [one.peak_bytes for _, one in sorted(run.runs.items())]


def test_another_place_than_in_the_records_peaks_where_there_are_more_layers():
    sizes = (256, 256, 16_000, 2)
    whole = ws.paper(checkpointed, 48, *sizes, **OPTIONS)
    deep = ws.paper(checkpointed, 48, *sizes, depths=(2, 3, 4), **OPTIONS)
    first, second, third = peaks_of_records(deep)
    assert third - second == pytest.approx(second - first)  # the line through their peaks misses none of the three,
    assert second + 45 * (third - second) < 0.9 * whole.peak_bytes  # and yet is wrong
    assert deep.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-3)
    assert abs(deep.error_fraction["peak_bytes"]) < 1e-3


def keeps_more_in_each_layer(num_layers):
    import torch

    kept = [torch.ones(1000 * layer) for layer in range(num_layers)]
    return sum(len(one) for one in kept)


def test_the_error_says_where_the_lines_are_none():
    whole = ws.paper(keeps_more_in_each_layer, 16, **OPTIONS)
    deep = ws.paper(keeps_more_in_each_layer, 16, depths=(3, 4, 5), **OPTIONS)
    assert deep.peak_bytes < 0.6 * whole.peak_bytes
    assert abs(deep.error_fraction["peak_bytes"]) > 0.2


@pytest.mark.parametrize(
    ("shallow", "deep", "front", "back"),
    [
        ("AxyB", "AxyxyB", [0, 1, 2, 5], [0, 3, 4, 5]),  # the layer counts from the front, and from the back
        ("AxyByxC", "AxyxyByxyxC", [0, 1, 2, 5, 6, 7, 10], [0, 3, 4, 5, 8, 9, 10]),
        ("AxxB", "AxxxxB", [0, 1, 2, 5], [0, 3, 4, 5]),
    ],
)
def test_layers_are_counted_from_both_ends(shallow, deep, front, back):
    matched = _matched(shallow, deep, shallow, deep)
    places = range(len(shallow))
    assert _slid(matched, shallow, deep, places, 1) == dict(enumerate(front))
    assert _slid(matched, shallow, deep, reversed(places), -1) == dict(enumerate(back))


def test_what_grows_with_the_layers_is_matched_by_its_place():
    strict = [("A", 1), ("update", 2), ("B", 1)], [("A", 1), ("x", 1), ("update", 3), ("B", 1)]
    loose = [[name for name, _ in one] for one in strict]
    assert _matched(*strict, *loose) == {0: 0, 1: 2, 2: 3}
