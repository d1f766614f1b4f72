"""Bytes that tensors hold, by kind, against counts by hand and torch's own tracker."""

import threading

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from worldsize import memory
from worldsize.memory.capacity import Capacity
from worldsize.memory.ledger import Ledger
from worldsize.memory.meter import MemoryMeter, OutOfMemory, in_new_thread
from worldsize.memory.use import MAX_HOLDINGS
from worldsize.models import SHAPES, Transformer

B, D, H, C = 32, 8, 16, 4  # batch, input, hidden, classes
WEIGHTS = 4 * (H * D + C * H)  # bytes of the two matrices in float32
STEPS = 2 * 4  # bytes of Adam's step counts, one a matrix


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, H, bias=False), nn.ReLU(), nn.Linear(H, C, bias=False))


def nonzero(sizes):
    return {kind: size for kind, size in sizes.items() if size}


def test_memory_counts_what_is_held_and_views_once():
    given = torch.ones(100)
    with MemoryMeter([given]) as meter:
        view = given.view(10, 10)
        view.mul_(2)
        assert meter.most_bytes == 400
        doubled = view * 2
        del doubled
        given + 1
        assert meter.most_bytes == 800  # what was let go makes room
        kept = [given + 1, given + 2]
    assert len(kept) == 2 and meter.most_bytes == meter.held_bytes == 1_200


def test_memory_counts_what_a_graph_has_saved():
    weight = torch.ones(100, requires_grad=True)
    with MemoryMeter([weight]) as meter:
        losses = [weight.exp().sum() for _ in range(3)]  # exp saves its result
        assert 1_600 <= meter.most_bytes < 1_700
        losses = [loss.detach() for loss in losses]
        meter.restart()
        weight.detach() * 2
        assert meter.most_bytes < 900


def test_a_storage_holds_its_present_size():
    with MemoryMeter() as meter:
        tensor = torch.ones(1_000)
        tensor.untyped_storage().resize_(0)
        assert meter.held_bytes == 0
        tensor.untyped_storage().resize_(8_000)
        assert meter.held_bytes == meter.most_bytes == 8_000
        tensor.resize_(500)  # shrinks the tensor, not its storage
        assert meter.held_bytes == 8_000


def test_memory_made_outside_operations_counts_when_it_is_read():
    with MemoryMeter() as meter:
        listed = torch.tensor([0.0] * 100)
        assert meter.held_bytes == 400
        shared = torch.frombuffer(bytearray(800), dtype=torch.float32)
        shared.sum()
        assert meter.held_bytes == 1_200
    assert listed.numel() == 100


def test_what_is_only_read_counts_where_that_is_asked_for():
    before = torch.ones(100)
    with MemoryMeter(counts_read=False) as meter:
        kept = before + 1
        assert meter.held_bytes == 400
    with MemoryMeter() as meter:
        assert kept is not None and (before + 1).numel() == 100
        assert meter.held_bytes == 400 and meter.most_bytes == 800


def test_a_step_of_training_is_counted_to_the_byte():
    with MemoryMeter() as meter:
        model = mlp()
        assert nonzero(meter.held()) == {"weights": WEIGHTS}
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        x = torch.randn(B, D)
        assert nonzero(meter.held()) == {"weights": WEIGHTS, "temporaries": 4 * B * D}
        y = model(x)
        # the input and ReLU's result are saved for the matrices' gradients, and y is held by its name
        activations = 4 * B * (D + H + C)
        assert nonzero(meter.held()) == {"weights": WEIGHTS, "activations": activations}
        gradient = torch.ones(B, C)
        y.backward(gradient)
        held = {"weights": WEIGHTS, "gradients": WEIGHTS, "activations": 4 * B * (D + C), "temporaries": 4 * B * C}
        assert nonzero(meter.held()) == held  # the graph's are free, x, y and the gradient have names
        del x, y, gradient
        optimizer.step()
        assert nonzero(meter.held()) == {
            "weights": WEIGHTS,
            "gradients": WEIGHTS,
            "optimizer state": 2 * WEIGHTS + STEPS,
        }
        optimizer.zero_grad()
        assert nonzero(meter.held()) == {"weights": WEIGHTS, "optimizer state": 2 * WEIGHTS + STEPS}


def test_the_peak_is_explained_in_hindsight():
    with MemoryMeter() as meter:
        model = mlp()
        model(torch.randn(B, D)).sum().backward()
        use = meter.use()
    # in the second matrix's gradient: the input, ReLU's result and the sum, the gradient that came in, and this one
    first, second = 4 * H * D, 4 * C * H
    assert use.peak["weights"] == WEIGHTS and use.peak["gradients"] in (second, first + second)
    assert use.most_bytes == meter.most_bytes == sum(one.size_bytes for one in use.holdings)
    by_module = {(one.kind, one.module): one.size_bytes for one in use.holdings}
    assert by_module["activations", "ReLU 1"] == 4 * B * H
    largest = use.holdings[0]
    assert "model(torch.randn(B, D)).sum().backward()" in largest.line
    assert str(largest) in use.explain() and "activations" in use.explain()


def test_many_layers_that_hold_most_together_are_explained_before_what_holds_most_in_one_line():
    ledger, held = Ledger(), []
    sizes = [("activations", 500)] * 30 + [("activations", 510), ("optimizer state", 6_000)] + [("weights", 600)] * 20
    for number, (kind, size_bytes) in enumerate(sizes):
        ledger.begin_operation()
        held.append(torch.empty(size_bytes, dtype=torch.uint8))
        ledger.note([held[-1]], kind, f"Layer {number}")
    use = ledger.use()
    assert use.holdings[0].kind == "optimizer state" and len(use.holdings) == MAX_HOLDINGS
    assert " Where, largest kind first: activations 510 B (Layer 30, " in use.explain()
    assert use.explain().count("activations 500 B (") == 2 and "optimizer state 6.00 kB (" not in use.explain()


def test_a_step_by_hand_is_known_by_its_updates():
    with MemoryMeter():
        weight = torch.randn(100, 1, requires_grad=True)
        (torch.randn(10, 100) @ weight).sum().backward()
        with torch.no_grad():
            momentum = torch.zeros_like(weight)
            memory.count_as("optimizer state", [momentum])
            weight -= 0.1 * momentum.add_(weight.grad)
        assert nonzero(memory.held()) == {"weights": 400, "gradients": 400, "optimizer state": 400}
    with pytest.raises(ValueError, match="memory=True"):
        memory.held()
    with pytest.raises(ValueError, match="no kind of memory called 'moments'"):
        memory.count_as("moments", [])


def test_checkpointing_holds_the_inputs_of_its_blocks():
    """Of 6 blocks that keep 3 tensors of a batch each, recomputation keeps their inputs, and one block's at a time."""
    width, one = 64, 4 * B * 64
    blocks = [nn.Sequential(nn.Linear(width, width, bias=False), nn.Sigmoid(), nn.Tanh()) for _ in range(6)]

    def after_forward(recomputed):
        with MemoryMeter([p for block in blocks for p in block.parameters()]) as meter:
            x = torch.randn(B, width)
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False) if recomputed else block(x)
            held = meter.held()["activations"]
            x.backward(torch.ones_like(x))
            most = {kind: max(sizes) for kind, sizes in meter.use().sizes.items()}
        return held, most["activations"]

    # Linear saves its input, Sigmoid and Tanh their results: the last block's result has a name
    assert after_forward(recomputed=False) == (one * 13, one * 13 + one)
    held, most = after_forward(recomputed=True)
    assert held == one * 7  # the inputs, and the last block's result
    assert most == one * 10  # and in a recomputation Linear's result and the two that are saved


def test_another_thread_is_counted_where_it_says_so():
    kept = []

    def work(context):
        with context():
            kept.append(torch.ones(100) + 1)

    with MemoryMeter() as meter:
        thread = threading.Thread(target=work, args=(in_new_thread,))
        thread.start()
        thread.join()
        assert meter.held_bytes == 400


def test_a_full_gpu_says_what_fills_it_and_what_would_fit():
    capacity = Capacity(3 * WEIGHTS, "H100 SXM", num_ranks=4)

    def train():
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        model(torch.randn(2, D)).sum().backward()
        optimizer.step()

    with MemoryMeter(capacity=capacity) as meter:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            train()
        text = str(caught.value)
        assert isinstance(caught.value, OutOfMemory)
        assert text.startswith("H100 SXM is out of memory: it has 2.30 kB, and this rank's tensors hold ")
        assert "weights 768 B, gradients 768 B, optimizer state 516 B" in text  # of the first matrix, until it was full
        assert "would fit with the optimizer state (ZeRO-1) sharded over 4 ranks" in text
        del caught
        assert meter.held_bytes < capacity.size_bytes  # what failed is free again


@pytest.mark.parametrize(
    ("sizes", "is_sharded", "advice"),
    [
        ({"weights": 60, "activations": 60}, False, "with the optimizer state, the gradients and the weights"),
        ({"weights": 60, "activations": 60}, True, "activations of at most 40 B"),
        ({"weights": 60, "gradients": 60, "optimizer state": 120}, True, "a GPU with more memory"),
        ({"weights": 160, "activations": 60}, False, "sharded over 4 ranks, in 100 B."),
    ],
)
def test_advice_is_what_would_be_enough(sizes, is_sharded, advice):
    assert advice in Capacity(100, "a GPU", 4).explain(sizes, is_sharded)


def transformer_step(model, optimizer, tokens):
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_transformer_agrees_with_torchs_own_tracker():
    def made():
        torch.manual_seed(0)
        model = Transformer(SHAPES["small"])
        return model, torch.optim.Adam(model.parameters(), foreach=False), torch.randint(256, (4, 64))

    model, optimizer, tokens = made()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        for _ in range(2):
            transformer_step(model, optimizer, tokens)
            tracker.reset_mod_stats()
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    with MemoryMeter() as meter:
        model, optimizer, tokens = made()
        meter.restart()
        for _ in range(2):
            transformer_step(model, optimizer, tokens)
        use = meter.use()
    theirs = {getattr(kind, "value", kind): size for kind, size in snapshot.items()}
    assert use.most_bytes == pytest.approx(theirs["Total"], rel=0.03)
    assert use.peak["weights"] == theirs["Parameter"] + theirs["Buffer"]
    assert use.peak["optimizer state"] == pytest.approx(theirs["Optstate"], rel=0.03)


@pytest.mark.parametrize("place", [202, 203])
def test_many_changes_keep_the_peak_and_its_holdings(monkeypatch, place):
    monkeypatch.setattr("worldsize.memory.ledger._MAX_CHANGES", 50)
    monkeypatch.setattr("worldsize.memory.ledger.MAX_POINTS", 20)
    ledger = Ledger()
    for number in range(400):
        ledger.begin_operation()
        tensor = torch.empty(7_000 if number == place else 100 * (number % 37), dtype=torch.uint8)
        ledger.note([tensor], "activations")
        del tensor
    use = ledger.use()
    assert use.most_bytes == ledger.most_bytes == 7_000
    assert [one.size_bytes for one in use.holdings] == [7_000]
    assert len(use.operations) <= 20 and use.held["activations"] == 0
