"""The text that small language models train on, and that one of them learns from it."""

import hashlib
import math

import pytest
import torch
from torch.nn import functional as F

import worldsize as ws
from worldsize import text
from worldsize.models.shapes import Shape
from worldsize.models.transformer import Transformer

SHAPE = Shape(
    name="two narrow layers",
    num_layers=2,
    width=64,
    num_heads=4,
    num_kv_heads=4,
    hidden_width=192,
    vocab_size=text.VOCAB_SIZE,
    context_length=64,
    source="for this test, 2026",
)


@pytest.fixture
def one_thread():
    """Several workers share the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_book_is_whole():
    tokens = text.tokens()
    assert tokens.dtype == torch.uint8 and tokens.shape == (147_704,)
    assert hashlib.sha256(bytes(tokens.tolist())).hexdigest().startswith("9d07e4ab8418d9d0")
    book = text.decode(tokens)
    assert book.startswith("CHAPTER I\n\nDown the Rabbit-Hole\n\n  Alice was beginning to get very tired")
    assert book.count("CHAPTER ") == 12 and book.rstrip().endswith("THE END")
    assert "\r" not in book and book.isascii()


def test_who_changes_the_tokens_changes_only_their_own():
    text.tokens().zero_()
    assert text.decode(text.tokens()[:9]) == "CHAPTER I"


def test_targets_are_the_bytes_that_follow():
    tokens = torch.arange(200, dtype=torch.uint8)
    inputs, targets = text.batch(tokens, 5, 16, generator())
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (5, 16) and inputs.is_contiguous() and targets.is_contiguous()
    assert torch.equal(targets, inputs + 1) and torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_batch_is_its_generators():
    tokens = text.tokens()
    first, again, other = (text.batch(tokens, 4, 8, generator(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_every_place_may_be_drawn_and_none_beyond():
    starts = {int(row[0]) for row in text.batch(torch.arange(10), 500, 7, generator())[0]}
    assert starts == {0, 1, 2}


@pytest.mark.parametrize(("num_tokens", "batch_size", "length"), [(8, 1, 8), (0, 1, 1), (9, 0, 2), (9, 2, 0)])
def test_what_cannot_be_cut_is_refused(num_tokens, batch_size, length):
    with pytest.raises(ValueError, match=f"cannot be cut from {num_tokens} tokens"):
        text.batch(torch.zeros(num_tokens, dtype=torch.uint8), batch_size, length, generator())


def test_bytes_that_are_not_text_can_be_read():
    assert text.decode([72, 105, 255]) == "Hi\ufffd"


@pytest.mark.usefixtures("one_thread")
def test_a_small_decoder_learns_from_the_book():
    model, tokens, source = Transformer(SHAPE), text.tokens(), generator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        inputs, targets = text.batch(tokens, 16, 64, source)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert math.log(text.VOCAB_SIZE) < losses[0] < math.log(text.VOCAB_SIZE) + 1
    assert sum(losses[-5:]) / 5 < 2.9


def test_ranks_on_paper_read_the_book():
    def step():
        inputs, targets = text.batch(text.tokens(), 4, 64, torch.Generator().manual_seed(0))
        F.cross_entropy(Transformer(SHAPE)(inputs).flatten(0, 1), targets.flatten()).backward()

    assert ws.paper(step, world_size=1, cluster="dgx-h100", echo=False).step_s > 0
