"""The transformer computes what its parts promise, with the same weights everywhere."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from worldsize.models import Transformer, shape
from worldsize.models.transformer import RMSNorm, rotary_angles, rotate

TINY = shape("tiny")


@pytest.fixture(autouse=True)
def one_thread():
    """Several workers share the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def some_tokens(num_sequences=2, length=12):
    return torch.randint(TINY.vocab_size, (num_sequences, length), generator=torch.Generator().manual_seed(0))


def weights(model):
    return dict(model.named_parameters())


def are_equal(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    first, second, other = Transformer(TINY, seed=3), Transformer(TINY, seed=3), Transformer(TINY, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert are_equal(weights(first), weights(second))
    matrices = [name for name, weight in first.named_parameters() if weight.dim() > 1]
    drawn = [weights(model)[name].flatten()[:100] for model in (first, other) for name in matrices]
    assert len({tuple(values.tolist()) for values in drawn}) == 2 * len(matrices)
    for name in matrices:
        weight = weights(first)[name].detach()
        assert weight.std().item() * weight.shape[1] ** 0.5 == pytest.approx(1, rel=0.05)


def test_weights_drawn_after_the_meta_device_are_the_same():
    with torch.device("meta"):
        model = Transformer(TINY, seed=3)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    before = torch.get_rng_state()
    model.init_weights(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    expected = Transformer(TINY, seed=3)
    assert are_equal(weights(model), weights(expected))
    assert torch.equal(model(some_tokens()), expected(some_tokens()))  # nothing else was lost with the empty tensors


@pytest.mark.parametrize("cuts", [(0, 1, 3), (0, 1, 2, 3), (0, 3)])
def test_stages_are_the_whole_model(cuts):
    sizes = replace(TINY, num_layers=3)
    whole = Transformer(sizes, seed=1)
    x, found = some_tokens(), {}
    for start, stop in pairwise(cuts):
        stage = Transformer(sizes, layers=range(start, stop), seed=1)
        x = stage(x)
        found |= weights(stage)
    assert are_equal(found, weights(whole))
    assert torch.equal(x, whole(some_tokens()))


def test_no_token_sees_a_later_one():
    model, tokens = Transformer(TINY), some_tokens()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % TINY.vocab_size
    differs = (model(tokens) != model(changed)).any(-1)
    assert not differs[:, :7].any() and differs[:, 7:].all()


def test_a_product_of_rotated_vectors_depends_on_their_distance_alone():
    angles = rotary_angles(50, 8, 10_000.0, torch.device("cpu"))
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    queries, keys = (rotate(x.expand(1, 50, 1, 8), cos, sin)[0, :, 0] for x in (query, key))
    products = queries @ keys.T
    for distance in range(-40, 40):
        assert products.diagonal(distance).std() < 1e-5
    assert abs(products[0, 0] - query @ key) < 1e-5
    assert products[0].std() > 0.1
    # the first pair turns by one radian a token, the last by base ** (2 / D - 1)
    assert angles[1, 0].tolist() == pytest.approx([1, 0.1, 0.01, 0.001])


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_grouped_heads_are_heads_with_equal_keys_and_values(num_kv_heads):
    grouped = Transformer(replace(TINY, num_kv_heads=num_kv_heads))
    full = Transformer(replace(TINY, num_kv_heads=TINY.num_heads))
    state = grouped.state_dict()
    for name, weight in state.items():
        if name.endswith(("key.weight", "value.weight")):
            heads = weight.unflatten(0, (num_kv_heads, TINY.head_dim))
            state[name] = heads.repeat_interleave(TINY.num_heads // num_kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(some_tokens()), full(some_tokens()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_norm_is_torchs(dtype):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 64, generator=draw, dtype=dtype).mul(3).requires_grad_()
    weight, grad = torch.randn(64, generator=draw, dtype=dtype), torch.randn(3, 5, 64, generator=draw, dtype=dtype)
    norm = RMSNorm(64).to(dtype)
    norm.weight.data.copy_(weight)
    weight.requires_grad_()
    ours, theirs = norm(x), F.rms_norm(x, (64,), weight, 1e-5)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs)
    gradients = torch.autograd.grad(ours, (x, norm.weight), grad)
    torch.testing.assert_close(gradients, torch.autograd.grad(theirs, (x, weight), grad))


def test_gradients_are_those_of_finite_differences():
    sizes = replace(TINY, width=8, num_heads=2, num_kv_heads=1, hidden_width=6, vocab_size=5)
    model = Transformer(sizes, layers=range(1, 2)).double()  # no embedding: takes (B, T, W)
    x = torch.randn(1, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    parameters = list(model.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: model(x), (x, *parameters))


def test_positions_are_exact_whatever_the_default_dtype():
    expected = rotary_angles(3000, 8, 10_000.0, torch.device("cpu"))
    with default_dtype(torch.bfloat16):
        assert torch.equal(rotary_angles(3000, 8, 10_000.0, torch.device("cpu")), expected)
    assert expected[2999, 0, 0] == 2999


def test_bfloat16_is_close_to_float32():
    model, tokens = Transformer(TINY), some_tokens()
    expected = model(tokens)
    got = model.to(torch.bfloat16)(tokens)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected, atol=0.1, rtol=0.1)


def test_it_runs_on_fake_tensors():
    with FakeTensorMode(), default_dtype(torch.bfloat16):  # no module can be converted on fake tensors
        model = Transformer(shape("llama-3-8b"), layers=range(31, 32))
        logits = model(torch.zeros(2, 16, 4096))
        logits.sum().backward()
        assert logits.shape == (2, 16, 128_256) and logits.dtype == torch.bfloat16
        assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())


@pytest.mark.parametrize("is_tied", [False, True])
def test_it_learns_a_text_in_seconds(is_tied):
    text = torch.tensor(list(b"a rank that waits for a rank that waits for a rank, waits. " * 3))
    model = Transformer(replace(TINY, is_tied=is_tied))
    assert (model.head.weight is model.embedding.weight) == is_tied
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(model(text[None, :-1])[0], text[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert 5 < losses[0] < 7  # log 256 and half the variance of the logits
    assert losses[-1] < 0.3


@pytest.mark.parametrize("layers", [range(1, 3), range(-1, 1), range(0, 2, 2), range(2, 1), range(0, 0), range(2, 2)])
def test_layers_that_it_does_not_have_are_refused(layers):
    with pytest.raises(ValueError, match=r"it must be a part of range\(0, 2\) that is not empty"):
        Transformer(TINY, layers=layers)


def test_what_it_cannot_be_is_refused():
    with pytest.raises(ValueError, match="gpt-3-175b is of the family 'gpt'"):
        Transformer(shape("gpt-3-175b"))
    with pytest.raises(ValueError, match="a tied head must be in the same stage as the embedding"):
        Transformer(replace(TINY, is_tied=True), layers=range(1))


def test_a_shape_with_experts_is_refused():
    with pytest.raises(ValueError, match="has no experts, but mixtral-8x7b has 8"):
        Transformer(shape("mixtral-8x7b"))
