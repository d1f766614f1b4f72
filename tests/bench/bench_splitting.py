"""Lab 8's block by hand beside the same block by torch's `parallelize_module`: emulated steps, and real throughput."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from block_by_hand import solution_source, solved
from figures import Figure, scaled
from torch import nn
from torch.nn import functional as F

import worldsize as ws
from worldsize import emulate

_MOST, _LEAST = 1.01, 0.95  # of torch's emulated step, and of its throughput on real ranks
_SIZES = {"width": 512, "num_heads": 8, "num_kv_heads": 4, "head_dim": 64, "hidden_width": 1408}
_MODES = {"tensor parallel": False, "and sequence parallel": True}


def splitting(scale: float) -> Iterator[Figure]:
    """The step of a block by hand over that of torch's own, in both modes; and on two real ranks."""
    source = solution_source()
    for mode, is_cut in _MODES.items():
        for num_tokens in (64, scaled(1024, scale, least=128)):
            job = (_step_s, source, is_cut, num_tokens)
            run = ws.run(*job, world_size=4, cluster="dgx-h100", echo=False, timeout_s=300)
            theirs_s, by_hand_s = run.values[0]
            ratio = by_hand_s / theirs_s
            how = f"{num_tokens} tokens, 4 ranks, bfloat16, emulated on dgx-h100"
            yield Figure(f"lab 8's block over torch's, {mode}", ratio, "x", "at most 1.01", ratio <= _MOST, how)
    num_pairs = scaled(20, scale, least=3)
    for mode, is_cut in _MODES.items():
        job = (_pairs, source, is_cut, num_pairs)
        run = ws.run(*job, world_size=2, backend="gloo", echo=False, timeout_s=300)
        ratio = statistics.median(theirs_s / by_hand_s for theirs_s, by_hand_s in run.values[0])
        how = f"median of {num_pairs} interleaved pairs of steps, two real Gloo ranks, float32"
        name = f"lab 8's block, throughput of torch's, {mode}"
        yield Figure(name, ratio, "x", "at least 0.95", ratio >= _LEAST, how)


def _step_s(source: str, is_cut: bool, num_tokens: int) -> tuple[float, float]:
    """The virtual seconds of a second forward and backward, by torch and by hand."""
    taken_s = []
    for make in (_by_torch, _by_hand):
        step = make(solved(source), is_cut, num_tokens, torch.bfloat16)
        for _ in range(2):
            start_s = emulate.elapsed()
            step()
            end_s = emulate.elapsed()
        taken_s.append(end_s - start_s)
    return taken_s[0], taken_s[1]


def _pairs(source: str, is_cut: bool, num_pairs: int) -> list[tuple[float, float]]:
    """Seconds of a step by torch and of one by hand, in turn, after a first one each."""
    torch.set_num_threads(1)
    steps = [make(solved(source), is_cut, 128, torch.float32) for make in (_by_torch, _by_hand)]
    pairs = []
    for number in range(num_pairs + 1):
        taken_s = []
        for step in steps:
            dist.barrier()
            start_s = time.perf_counter()
            step()
            dist.barrier()
            taken_s.append(time.perf_counter() - start_s)
        if number:
            pairs.append((taken_s[0], taken_s[1]))
    return pairs


def _inputs(is_cut: bool, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    num_own = num_tokens // dist.get_world_size() if is_cut else num_tokens
    return torch.randn(1, num_own, _SIZES["width"], dtype=dtype, requires_grad=True)


def _by_hand(lab: Any, is_cut: bool, num_tokens: int, dtype: torch.dtype) -> Callable[[], None]:
    full = lab.Weights(*(one.to(dtype) for one in lab.random_weights(**_SIZES)))
    shard = lab.shard_weights(full, _SIZES["head_dim"], dist.get_rank(), dist.get_world_size())
    shard = lab.Weights(*(nn.Parameter(one) for one in shard))
    x = _inputs(is_cut, num_tokens, dtype)

    def step() -> None:
        for one in (x, *shard):
            one.grad = None
        lab.parallel_block(x, shard, _SIZES["head_dim"], is_cut).sum().backward()
        lab.sync_replicated(shard, is_cut)

    return step


class _Attention(nn.Module):
    """The first half of the block, with a layer for each of queries, keys and values."""

    def __init__(self, lab: Any, full: Any) -> None:
        super().__init__()
        rows = full.output.shape[1]
        kv_rows = (len(full.qkv) - rows) // 2
        parts = full.qkv.split([rows, kv_rows, kv_rows])
        self.query, self.key, self.value = (_linear(part) for part in parts)
        self.output, self.attend = _linear(full.output, full.output_bias), lab.attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.query(x), self.key(x), self.value(x)
        return self.output(self.attend(*parts, _SIZES["head_dim"]))


class _Mlp(nn.Module):
    """The second half of the block."""

    def __init__(self, full: Any) -> None:
        super().__init__()
        self.gate, self.up, self.down = _linear(full.gate), _linear(full.up), _linear(full.down, full.down_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def _linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(*weight.shape[::-1], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def _by_torch(lab: Any, is_cut: bool, num_tokens: int, dtype: torch.dtype) -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    full = lab.Weights(*(one.to(dtype) for one in lab.random_weights(**_SIZES)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tokens = Shard(1) if is_cut else Replicate()
    halves = []
    for half, columns, rows in (
        (_Attention(lab, full), ("query", "key", "value"), "output"),
        (_Mlp(full), ("gate", "up"), "down"),
    ):
        plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        plan |= {"": PrepareModuleInput(input_layouts=tokens, desired_input_layouts=Replicate())}
        plan |= {rows: RowwiseParallel(output_layouts=tokens)}
        halves.append(parallelize_module(half, mesh, plan))
    norms = [nn.Parameter(full.attention_norm), nn.Parameter(full.mlp_norm)]
    x = _inputs(is_cut, num_tokens, dtype)

    def step() -> None:
        for one in (x, *norms, *halves[0].parameters(), *halves[1].parameters()):
            one.grad = None
        y = x
        for norm, half in zip(norms, halves, strict=True):
            y = y + half(lab.rms_norm(y, norm))
        y.sum().backward()
        if is_cut:
            flat = torch.cat([norm.grad for norm in norms if norm.grad is not None])
            dist.all_reduce(flat)

    return step
