"""The peak of a deep program from records with few layers, where other places peak than in these."""

import dataclasses

import cloudpickle
import large_programs
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


def same_split(deep, whole):
    """Whether the kinds at the peak are those of all layers, and add up to it."""
    assert sum(deep.peak_by_kind.values()) == pytest.approx(deep.peak_bytes)
    return deep.peak_by_kind == pytest.approx(whole.peak_by_kind, abs=1e-3 * whole.peak_bytes)


def test_another_place_than_in_the_records_peaks_where_there_are_more_layers():
    sizes = (256, 256, 16_000, 2)
    whole = ws.paper(checkpointed, 48, *sizes, **OPTIONS)
    deep = ws.paper(checkpointed, 48, *sizes, depths=(2, 3, 4), **OPTIONS)
    first, second, third = peaks_of_records(deep)
    assert third - second == pytest.approx(second - first)  # the line through their peaks misses none of the three,
    assert second + 45 * (third - second) < 0.9 * whole.peak_bytes  # and yet is wrong
    assert deep.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-3)
    assert same_split(deep, whole) and max(deep.peak_by_kind.values()) == deep.peak_by_kind["optimizer state"]
    assert abs(deep.error_fraction["peak_bytes"]) < 1e-3


def replicated(num_layers):
    """DDP, which first sends the weights in pieces that begin in other layers of a deeper model."""
    import dataclasses

    import torch
    from torch.nn.parallel import DistributedDataParallel

    from worldsize.models import shape
    from worldsize.models.transformer import Transformer

    sizes = dataclasses.replace(shape("llama-2-7b"), num_layers=num_layers)
    model = DistributedDataParallel(Transformer(sizes).to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        model(torch.zeros(1, 1024, dtype=torch.long)).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


LLAMA = "llama-3-8b"
SHARDED = (LLAMA, 2, "none", 1, 1024)
PROGRAMS = {
    "FSDP2": (large_programs.fully_sharded, SHARDED, 8, (3, 4, 5)),
    "FSDP2 that recomputes": (large_programs.fully_sharded, (LLAMA, 2, "full", 1, 1024), 8, (3, 4, 5)),
    "stages": (large_programs.in_stages, (LLAMA, 2, 2, 4), 10, (4, 6, 8)),
    "DDP": (replicated, (), 6, (2, 3, 4)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_that_of_all_layers_and_the_error_says_so(name):
    cloudpickle.register_pickle_by_value(large_programs)
    fn, args, num_layers, depths = PROGRAMS[name]
    whole = ws.paper(fn, num_layers, *args, **OPTIONS)
    deep = ws.paper(fn, num_layers, *args, depths=depths, **OPTIONS)
    assert deep.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-6)
    assert same_split(deep, whole)
    assert deep.step_s == pytest.approx(whole.step_s, rel=1e-3)
    assert max(map(abs, deep.error_fraction.values())) < 1e-3
    assert "were recorded (error of the lines: step 0.0%, peak 0.0%)" in repr(deep)


@pytest.fixture(scope="module")
def runs():
    """FSDP2 with one, two and three layers; only the third is between two others."""
    cloudpickle.register_pickle_by_value(large_programs)
    return ws.paper(large_programs.fully_sharded, 8, *SHARDED, depths=(1, 2, 3), **OPTIONS)


def test_two_depths_of_which_the_deeper_does_something_new_give_no_peak(runs):
    deep = ws.DeepRun(8, {depth: runs.runs[depth] for depth in (2, 3)})
    why = "with 3 layers the memory of a rank changes as it never does with 2; name a third depth, or record"
    with pytest.raises(ValueError, match=f"these depths give no peak: {why}"):
        _ = deep.fits
    with pytest.raises(ValueError, match="these depths give no peak"):
        _ = deep.peak_by_kind
    assert f"peak unknown: {why}" in repr(deep) and "no third depth, so the error of the lines is unknown" in repr(deep)
    assert "peak_bytes" not in deep.by_name() and deep.step_s == pytest.approx(runs.step_s)
    with pytest.raises(ValueError, match="a run on paper has no peak_bytes"):
        deep.compare({"peak_bytes": 1.0})


def test_two_depths_of_which_the_deeper_only_repeats_give_the_peak_of_all_layers():
    whole = ws.paper(checkpointed, 12, 256, 256, 16_000, 2, **OPTIONS)
    deep = ws.paper(checkpointed, 12, 256, 256, 16_000, 2, depths=(2, 3), **OPTIONS)
    assert deep.peak_bytes == pytest.approx(whole.peak_bytes, rel=1e-6) and deep.error_fraction is None


def test_a_peak_of_layers_that_are_not_recorded_says_what_helps_where_it_does_not_fit(runs):
    most = max(runs.peak_by_kind, key=lambda kind: runs.peak_by_kind[kind])
    of_size = dataclasses.replace(runs.cluster.gpu, memory_bytes=int(0.9 * runs.peak_bytes))
    full = runs.on(dataclasses.replace(runs.cluster, gpu=of_size))
    assert f". What to do: most of the peak is {most}: " in repr(full) and "What to do" not in repr(runs)


def test_the_error_of_depths_that_are_too_small_is_large(runs):
    whole = ws.paper(large_programs.fully_sharded, 8, *SHARDED, **OPTIONS)
    missed = runs.peak_bytes / whole.peak_bytes - 1
    assert abs(runs.error_fraction["peak_bytes"]) > max(0.1, abs(missed))


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


def test_what_is_in_no_layer_holds_micro_batches_together():
    one, two = 3 * ("x" + "H" + "x"), 3 * ("xx" + "H" + "xx")
    matched = _matched(one, two, one, two)
    assert len(matched) == len(one) and [matched[place] for place in (1, 4, 7)] == [2, 7, 12]
