"""Programs that stand for those of published runs on paper: GPT as Megatron-LM of 2020 to 2022 and MosaicML train it.

Shapes: T tokens, B sequences, W width, H heads, D numbers a head; tokens come first, as in Megatron-LM, so that heads
are views. Not theirs: kernels that fuse a bias, a dropout and a sum, and products of weights beside communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Sizes:
    """A GPT, and what a rank has of it."""

    width: int
    num_heads: int
    num_kv_heads: int
    hidden_width: int
    vocab_size: int
    length: int
    micro_batch: int
    tp: int = 1
    recompute: str = "none"
    is_sequence_split: bool = False
    has_flash: bool = False
    has_ends: bool = True
    reduces_in: str = "float32"  # gradients, of a sharded model


def micro_batch(num_layers: int, sizes: Sizes) -> None:
    """Forward and backward of a micro-batch, split over all ranks by Megatron's plan, in 16 bits."""
    model = Gpt(num_layers, sizes).to(torch.bfloat16)
    _forward_and_backward(model, sizes)


def sharded_step(num_layers: int, sizes: Sizes) -> None:
    """A step of one micro-batch by FSDP2 over all ranks."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device("meta"):
        model = Gpt(num_layers, sizes)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, sizes.reduces_in))
    for block in [*model.layers, model]:
        fully_shard(block, mp_policy=policy)
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    _forward_and_backward(model, sizes)
    optimizer.step()


def _forward_and_backward(model, sizes):
    if sizes.has_ends:
        tokens = torch.randint(0, sizes.vocab_size, (sizes.length, sizes.micro_batch))
        model(tokens).backward()
        return
    num_tokens = sizes.length // (sizes.tp if sizes.is_sequence_split else 1)
    x = torch.empty(num_tokens, sizes.micro_batch, sizes.width, dtype=torch.bfloat16, requires_grad=True)
    y = model(x)
    y.backward(torch.empty_like(y))


class Gpt(nn.Module):
    """Layers, and with `has_ends` the embedding before and the loss after them; a rank's part of each."""

    def __init__(self, num_layers, sizes):
        super().__init__()
        self.sizes, width = sizes, sizes.width
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(num_layers))
        if sizes.has_ends:
            self.embedding = nn.Parameter(torch.empty(-(-sizes.vocab_size // sizes.tp), width))
            self.positions = nn.Parameter(torch.empty(sizes.length, 1, width))
            self.norm = nn.LayerNorm(width)

    def forward(self, x):
        sizes = self.sizes
        tokens = x
        if sizes.has_ends:
            x = _sum(F.embedding(tokens % len(self.embedding), self.embedding), sizes)
            positions = self.positions
            if len(positions) > len(x):
                positions = positions[: len(x)]  # a rank's part of the sequence
            x = _dropout(x + positions, sizes)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if sizes.recompute == "full" else layer(x)
        if not sizes.has_ends:
            return x
        x = self.norm(x)
        if sizes.tp > 1:
            x = _Gather.apply(x, sizes.tp) if sizes.is_sequence_split else _Copy.apply(x)
        logits = F.linear(x, self.embedding).flatten(0, 1).float()  # (T B, V/tp)
        for _ in range(3 if sizes.tp > 1 else 0):  # the largest logit, the target's, the sum of exponentials
            dist.all_reduce(torch.empty(len(logits)))
        return F.cross_entropy(logits, (tokens % len(self.embedding)).flatten())


class Layer(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes, width, tp = sizes, sizes.width, sizes.tp
        self.num_heads, self.head_dim = sizes.num_heads // tp, width // sizes.num_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width // tp)
        self.output = nn.Linear(width // tp, width, bias=False)
        self.up = nn.Linear(width, sizes.hidden_width // tp)
        self.down = nn.Linear(sizes.hidden_width // tp, width, bias=False)

    def forward(self, x):  # (T, B, W)
        sizes = self.sizes
        y = _by_columns(self.query_key_value, self.attention_norm(x), sizes)  # (T, B, 3 W/tp)
        core = self._flash if sizes.has_flash else self._scores
        y = checkpoint(core, y, use_reentrant=False) if sizes.recompute == "selective" else core(y)
        x = x + _dropout(_sum(self.output(y), sizes), sizes)
        y = F.gelu(_by_columns(self.up, self.mlp_norm(x), sizes))
        return x + _dropout(_sum(self.down(y), sizes), sizes)

    def _scores(self, y):
        T, B, _ = y.shape
        query, key, value = y.view(T, B * self.num_heads, 3, self.head_dim).transpose(0, 1).unbind(2)  # (B H, T, D)
        scores = torch.softmax(torch.bmm(query, key.transpose(1, 2)), -1)  # (B H, T, T); scaled and masked in a kernel
        y = torch.bmm(_dropout(scores, self.sizes), value)
        return y.transpose(0, 1).reshape(T, B, -1)

    def _flash(self, y):
        T, B, _ = y.shape
        query, key, value = y.view(T, B, self.num_heads, 3, self.head_dim).permute(3, 1, 2, 0, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (B, H, T, D)
        return y.permute(2, 0, 1, 3).reshape(T, B, -1)


def _dropout(x, sizes):
    return x if sizes.has_flash else torch.native_dropout(x, 0.1, True)[0]  # MosaicML's runs have none


def _by_columns(linear, x, sizes):
    """A product of all tokens that is split by columns."""
    if sizes.tp > 1 and sizes.is_sequence_split:
        return _GatheredLinear.apply(x, linear.weight, linear.bias, sizes.tp)
    return linear(_Copy.apply(x) if sizes.tp > 1 else x)


def _sum(x, sizes):
    """The sum over all ranks, after a product that is split by rows."""
    if sizes.tp == 1:
        return x
    return _Scatter.apply(x, sizes.tp) if sizes.is_sequence_split else _Sum.apply(x)


def _summed(x):
    x = x.contiguous()
    dist.all_reduce(x)
    return x


def _gathered(x, tp):
    out = x.new_empty(tp * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous())
    return out


def _scattered(x, tp):
    out = x.new_empty(len(x) // tp, *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.contiguous())
    return out


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return _summed(grad)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _summed(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return _gathered(x, tp)

    @staticmethod
    def backward(ctx, grad):
        return _scattered(grad, ctx.tp), None


class _GatheredLinear(torch.autograd.Function):
    """A product that keeps its part of the tokens and gathers the others once more in backward, as Megatron-LM's."""

    @staticmethod
    def forward(ctx, x, weight, bias, tp):
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        return F.linear(_gathered(x, tp), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        whole = _gathered(x, ctx.tp).flatten(0, 1)
        flat = grad.flatten(0, 1)
        return _scattered(grad @ weight, ctx.tp), flat.t() @ whole, flat.sum(0), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return _scattered(x, tp)

    @staticmethod
    def backward(ctx, grad):
        return _gathered(grad, ctx.tp), None
