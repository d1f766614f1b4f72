"""Bytes of tensors that are alive at once."""

import torch

from worldsize.peak_memory import Alive


def test_memory_counts_what_is_held_and_views_once():
    given = torch.ones(100)
    with Alive([given]) as alive:
        view = given.view(10, 10)
        view.mul_(2)
        assert alive.most_bytes == 400
        doubled = view * 2
        del doubled
        given + 1
        assert alive.most_bytes == 800  # what was let go makes room
        kept = [given + 1, given + 2]
    assert len(kept) == 2 and alive.most_bytes == 1_200


def test_memory_counts_what_a_graph_has_saved():
    weight = torch.ones(100, requires_grad=True)
    with Alive([weight]) as alive:
        losses = [weight.exp().sum() for _ in range(3)]  # exp saves its result
        assert 1_600 <= alive.most_bytes < 1_700
        alive.most_bytes = 0
        losses = [loss.detach() for loss in losses]
        weight.detach() * 2
        assert alive.most_bytes < 900
