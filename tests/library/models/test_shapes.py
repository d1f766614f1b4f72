"""Shapes count what published models have, and what a real model computes and keeps."""

import ast
import inspect
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from worldsize.models import SHAPES, Transformer, shape, shapes
from worldsize.models.transformer import Block, Mlp

LLAMAS = [name for name in SHAPES if SHAPES[name].family == "llama" and SHAPES[name].num_experts == 1]
GPT = shape("gpt-3-175b")


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [  # the totals on the cards of Meta's checkpoints
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("qwen-2.5-32b", 32_763_876_352 - 64 * 7 * 1024),  # less the biases
        ("gpt-3-175b", 174_604_259_328),  # as equation 2 of Narayanan et al. 2021, below, and the last norm
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt-1t", 1_008_038_758_400),  # the same; 1008.0 billion in their table 1
    ],
)
def test_parameters_are_those_published(name, num_parameters):
    assert shape(name).num_parameters == num_parameters


@pytest.mark.parametrize(("name", "is_tied"), [*((name, False) for name in LLAMAS), ("tiny", True)])
def test_parameters_are_those_of_the_model(name, is_tied):
    sizes = replace(shape(name), is_tied=is_tied)
    with torch.device("meta"):
        model = Transformer(sizes)
    assert sizes.num_parameters == count(model)
    assert sizes.num_layer_parameters == count(model.layers["0"])
    assert sizes.num_embedding_parameters == count(model.embedding)


@pytest.mark.parametrize("num_layers", [24, 96])
@pytest.mark.parametrize("vocab_size", [50_257, 51_200])
def test_parameters_of_gpts_are_narayanans_equation_2(num_layers, vocab_size):
    sizes = replace(GPT, num_layers=num_layers, vocab_size=vocab_size)
    h, s = sizes.width, sizes.context_length
    expected = 12 * num_layers * h**2 * (1 + 13 / (12 * h) + (vocab_size + s) / (12 * num_layers * h))
    last_norm = 2 * h
    assert sizes.num_parameters - last_norm == pytest.approx(expected, rel=1e-14)
    assert sizes.num_head_parameters == last_norm
    assert replace(sizes, is_tied=False).num_head_parameters == last_norm + vocab_size * h


def test_a_layer_of_a_gpt_has_the_parameters_of_torchs():
    layer = nn.TransformerEncoderLayer(GPT.width, GPT.num_heads, GPT.hidden_width, device="meta")
    assert GPT.num_layer_parameters == count(layer)


@pytest.mark.parametrize("name", LLAMAS)
@pytest.mark.parametrize("length", [16, 128])
def test_flops_are_those_that_torch_counts(name, length):
    """Matrix products and attention; neither counts norms, rotation, SiLU, softmax, sums, and the embedding."""
    sizes, num_sequences = replace(shape(name), num_layers=2), 2
    with torch.device("meta"):
        model = Transformer(sizes)
        tokens = torch.zeros(num_sequences, length, dtype=torch.long)
        with FlopCounterMode(display=False) as forward:
            logits = model(tokens)
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
    num_tokens = num_sequences * length
    layers = sizes.num_layers * sizes.layer_flops(length)
    assert forward.get_total_flops() == num_tokens * (layers + sizes.head_flops)
    assert forward.get_total_flops() + backward.get_total_flops() == sizes.flops(num_tokens, length)


@pytest.mark.parametrize(("num_sequences", "length"), [(1, 2048), (1536, 2048), (8, 512)])
def test_flops_of_gpts_are_narayanans_equation_3_without_recomputation(num_sequences, length):
    B, s, h, V = num_sequences, length, GPT.width, GPT.vocab_size
    for L in (24, 96):
        expected = 72 * B * s * L * h**2 * (1 + s / (6 * h) + V / (12 * L * h))
        assert replace(GPT, num_layers=L).flops(B * s, s) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("num_sequences", "length"), [(1, 2048), (4, 1024)])
def test_activations_of_gpts_are_korthikantis_equation_1(num_sequences, length):
    b, s, h, a = num_sequences, length, GPT.width, GPT.num_heads
    assert GPT.layer_activation_bytes(b, s) == s * b * (34 * h + 5 * a * s)


@pytest.mark.parametrize(("num_sequences", "length"), [(1, 16), (3, 40)])
@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 4}, {"num_kv_heads": 1}, {"hidden_width": 160}])
def test_activations_are_those_that_autograd_keeps(num_sequences, length, changes):
    sizes = replace(shape("tiny"), **changes)
    block = Block(sizes).to(torch.bfloat16)
    x = torch.randn(num_sequences, length, sizes.width, dtype=torch.bfloat16, requires_grad=True)
    assert kept_bytes(block, x) == sizes.layer_activation_bytes(num_sequences, length)


def test_whole_layers_keep_as_much_each():
    sizes = shape("tiny")
    x = torch.randn(2, 16, sizes.width, dtype=torch.bfloat16, requires_grad=True)
    blocks = nn.Sequential(*(Block(sizes) for _ in range(5))).to(torch.bfloat16)
    assert kept_bytes(blocks, x) == 5 * sizes.layer_activation_bytes(2, 16)


def test_llama_2_7b_keeps_37_and_a_half_widths_a_token_and_little_more():
    sizes = shape("llama-2-7b")
    by_width = 37.5 * 4096 * sizes.width
    assert by_width < sizes.layer_activation_bytes(1, 4096) < 1.005 * by_width


def test_experts_compute_for_their_tokens_and_keep_what_these_need():
    """Against an MLP for each expert behind a router, with tokens spread evenly."""
    sizes = replace(shape("tiny"), num_experts=4, num_active_experts=2)
    dense = shape("tiny")
    assert sizes.layer_flops(16) - dense.layer_flops(16) == 2 * (dense.num_mlp_weights + 4 * 64)
    assert sizes.num_layer_parameters - dense.num_layer_parameters == 3 * dense.num_mlp_weights + 4 * 64

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(64, 4, bias=False)
            self.mlps = nn.ModuleList(Mlp(sizes) for _ in range(4))

        def forward(self, x):
            chances = self.router(x).float().softmax(-1)
            y = torch.zeros_like(x)
            for number, mlp in enumerate(self.mlps):
                mine = torch.arange(len(x)) % 4
                mine = ((mine == number) | (mine == (number + 1) % 4)).nonzero()[:, 0]  # two experts a token
                weighted = mlp(x[mine]) * chances[mine, number, None].to(x.dtype)
                y = y.index_put((mine,), weighted, accumulate=True)  # index_add would keep what it adds
            return y

    x = torch.randn(512, 64, dtype=torch.bfloat16, requires_grad=True)
    experts, mlp = Experts().to(torch.bfloat16), Mlp(dense).to(torch.bfloat16)
    more_bytes = sizes.layer_activation_bytes(1, 512) - dense.layer_activation_bytes(1, 512)
    assert more_bytes == pytest.approx(kept_bytes(experts, x) - kept_bytes(mlp, x), rel=0.02)


def test_the_bytes_that_autograd_keeps_are_counted_right():
    """Linear, GELU, linear: the inputs of each, 2, 8 and 8 widths of 16-bit numbers a token."""
    mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).to(torch.bfloat16)
    assert kept_bytes(mlp, torch.randn(5, 8, dtype=torch.bfloat16, requires_grad=True)) == 5 * 8 * (2 + 8 + 8)


def kept_bytes(module, x):
    """Bytes that autograd keeps from a forward, each storage once, without those of parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}  # the storages, so that none is freed and its address used again

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module(x)
    assert y.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_an_unknown_shape_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no shape is called 'llama3-8b'; did you mean 'llama-3-8b'\? Known: tiny, "):
        shape("llama3-8b")
    assert all(shape(name).name == name for name in SHAPES)


def test_a_size_names_the_only_shape_that_has_it():
    sizes = {"7B": "llama-2-7b", "8b": "llama-3-8b", "13B": "llama-2-13b", "32B": "qwen-2.5-32b", "70B": "llama-3-70b"}
    assert {size: shape(size).name for size in sizes} == sizes
    assert shape("8x7B").name == "mixtral-8x7b" and shape("1T").name == "gpt-1t" and shape("small").name == "small"
    for unknown in ("9B", "", "B", "3-8b"):
        with pytest.raises(ValueError, match="no shape is called"):
            shape(unknown)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_layers": 0}, "tiny: num_layers is 0; it must be 1 or more"),
        ({"context_length": -1}, "context_length is -1"),
        ({"family": "bert"}, "family is 'bert'; it must be 'llama' or 'gpt'"),
        ({"width": 60}, "a width of 60 cannot be split evenly into 4 heads"),
        ({"num_kv_heads": 3}, "4 heads cannot share 3 key/value heads evenly"),
        ({"num_experts": 2, "num_active_experts": 3}, "a token cannot go through 3 of 2 experts"),
        ({"num_active_experts": 0}, "num_active_experts is 0"),
        ({"num_experts": 2, "family": "gpt"}, "only the family 'llama' has experts"),
        ({"source": "a paper"}, "names no year"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        replace(shape("tiny"), **changes)


def test_the_data_need_no_torch():
    tree = ast.parse(inspect.getsource(shapes))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"__future__", "collections.abc", "dataclasses", "difflib", "re", "typing"}
