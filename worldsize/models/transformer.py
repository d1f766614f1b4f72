"""A decoder with Llama's architecture: RMSNorm, RoPE, GQA, SwiGLU.

Shapes: B sequences, T tokens, W width, H heads, K key/value heads, D elements per head, F hidden width, V vocabulary.
On a rank with a shard of the projections, H, K and F are the shard's, so they are read from the tensors.

Source: Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", arXiv 2302.13971; Llama Team 2024,
arXiv 2407.21783.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldsize.models.shapes import Shape


class Transformer(nn.Module):
    """A decoder from tokens (B, T) to logits (B, T, V), or a pipeline stage with some of its `layers`.

    The stage with layer 0 has the embedding, and that with the last layer the LM head; stages exchange (B, T, W). The
    same seed gives the same weights in every process and in every stage; the caller's random state is not changed.
    """

    def __init__(self, shape: Shape, *, layers: range | None = None, seed: int = 0) -> None:
        super().__init__()
        layers = range(shape.num_layers) if layers is None else layers
        is_first, is_last = _ends(shape, layers)
        with torch.random.fork_rng(devices=[]):
            self.embedding = nn.Embedding(shape.vocab_size, shape.width) if is_first else None
            self.layers = nn.ModuleDict({str(index): Block(shape) for index in layers})
            self.norm = RMSNorm(shape.width) if is_last else None
            self.head = nn.Linear(shape.width, shape.vocab_size, bias=False) if is_last else None
            if shape.is_tied and self.head is not None and self.embedding is not None:
                self.head.weight = self.embedding.weight
            self.init_weights(seed)

    def forward(self, x: Tensor) -> Tensor:  # (B, T), or (B, T, W) from the previous stage
        if self.embedding is not None:
            x = self.embedding(x)  # (B, T, W)
        for block in self.layers.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))  # (B, T, V)
        return x

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> None:
        """Draw every matrix from its own seed, made from `seed` and its name, which all stages share."""
        with torch.random.fork_rng(devices=[]):
            for name, weight in self.named_parameters():
                torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
                if weight.dim() > 1:
                    nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)  # matmuls preserve the scale of their input
                else:
                    nn.init.ones_(weight)


class Block(nn.Module):
    """One layer: attention, then the MLP, each with a norm before it and a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(shape.width), Attention(shape)
        self.mlp_norm, self.mlp = RMSNorm(shape.width), Mlp(shape)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, W)
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Causal attention in which H / K query heads share a key/value head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim, self.rotary_base = shape.head_dim, shape.rotary_base
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, W)
        B, T, _ = x.shape
        query = self.query(x).view(B, T, -1, self.head_dim)  # (B, T, H, D)
        key = self.key(x).view(B, T, -1, self.head_dim)  # (B, T, K, D)
        value = self.value(x).view(B, T, -1, self.head_dim)
        angles = rotary_angles(T, self.head_dim, self.rotary_base, x.device)
        cos, sin = angles.cos(), angles.sin()
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        y = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )  # (B, H, T, D)
        return self.output(y.transpose(1, 2).flatten(2))  # (B, T, H D) -> (B, T, W)


class Mlp(nn.Module):
    """SwiGLU: a gate on each of the F hidden elements."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden_width, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden_width, bias=False)
        self.down = nn.Linear(shape.hidden_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, W)
        return self.down(F.silu(self.gate(x)) * self.up(x))  # (B, T, F) -> (B, T, W)


def rotary_angles(length: int, head_dim: int, base: float, device: torch.device) -> Tensor:
    """Return the angle of each position and pair: from one radian per token for the first pair to nearly 1 / `base`."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)  # (D / 2)
    return torch.outer(torch.arange(length, device=device), frequencies).unsqueeze(1)  # (T, 1, D / 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # (B, T, H, D)
    """Rotate elements i and i + D / 2 of each head by their angle, so that q . k depends only on distance."""
    a, b = x.chunk(2, dim=-1)  # (B, T, H, D / 2), in float32 once it is multiplied
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)


class RMSNorm(nn.Module):
    """Each token divided by the root of its mean square, then scaled."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[return-value]


class _RMSNorm(torch.autograd.Function):
    """RMSNorm that keeps for backward what the GPU's fused kernel does: `x` and one number per token.

    On a CPU, `nn.RMSNorm` is several operators, which keep four times as much in bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # a sum of squares in 16 bits would be too imprecise
        scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()  # (B, T, 1)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale * weight).type_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        unit, grad_unit = x * scale, grad.to(scale.dtype) * weight
        grad_x = scale * (grad_unit - unit * (grad_unit * unit).mean(-1, keepdim=True))
        grad_weight = (grad * unit).sum(dim=list(range(x.dim() - 1)))
        return grad_x.type_as(x), grad_weight.type_as(weight), None


def _ends(shape: Shape, layers: range) -> tuple[bool, bool]:
    """Return whether these layers include the first and the last.

    Raises:
        ValueError: a decoder of this shape cannot be built, or cannot be split this way.
    """
    if shape.family != "llama":
        raise ValueError(f"Transformer has Llama's layers, but {shape.name} is of the family {shape.family!r}")
    if shape.num_experts > 1:
        raise ValueError(f"Transformer has no experts, but {shape.name} has {shape.num_experts}; give num_experts=1")
    if layers.step != 1 or not 0 <= layers.start < layers.stop <= shape.num_layers:
        raise ValueError(f"layers is {layers}; it must be a part of range(0, {shape.num_layers}) that is not empty")
    is_first, is_last = layers.start == 0, layers.stop == shape.num_layers
    if shape.is_tied and not (is_first and is_last):
        raise ValueError(
            f"{shape.name}: a tied head must be in the same stage as the embedding; give is_tied=False to split"
        )
    return is_first, is_last
