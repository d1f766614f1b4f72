"""What FSDP2 takes beside DDP, in virtual time; lab 7's stage 3 and lab 6's checkpointing beside torch's own."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from figures import Figure, scaled
from repository import ROOT
from torch import nn
from zero_by_hand import solution_source, solved

import worldsize as ws
from autograder.authoring.known_answers import solution_cells
from worldsize import emulate, models

_NUM_RANKS = 4
_MOST = 0.15  # of DDP's step, which published runs with FSDP report at worst
_MEMORY_MOST = 1.05  # of what torch's own checkpointing holds at its peak
_BY_HAND_MOST, _BY_HAND_LEAST = 1.05, 0.95  # of FSDP2's emulated step, and of its throughput on real ranks


def sharding(scale: float) -> Iterator[Figure]:
    """FSDP2's forward and backward over DDP's, for the small transformer with few tokens and with many; and by hand."""
    source = solution_source()
    for cluster in ("dgx-h100", "pcie-box"):
        for num_tokens in (16, scaled(1024, scale, least=32)):
            replicated_s, sharded_s, theirs_s, by_hand_s = (
                _run(cluster, how, source, num_tokens) for how in ("DDP", "FSDP2", "FSDP2 by part", "by hand")
            )
            how = f"{num_tokens} tokens on each of {_NUM_RANKS} ranks, bfloat16, emulated"
            more, of_theirs = sharded_s / replicated_s - 1, by_hand_s / theirs_s
            yield Figure(f"FSDP2 over DDP, {cluster}", 100 * more, "% more", "at most 15", more <= _MOST, how)
            name = f"lab 7's stage 3 over FSDP2, {cluster}"
            yield Figure(name, of_theirs, "x", "at most 1.05", of_theirs <= _BY_HAND_MOST, how)
    yield from _checkpointing(scale)
    num_pairs = scaled(20, scale, least=3)
    run = ws.run(_pairs, source, num_pairs, world_size=2, backend="gloo", echo=False, timeout_s=300)
    ratio = statistics.median(theirs_s / by_hand_s for theirs_s, by_hand_s in run.values[0])
    how = f"median of {num_pairs} interleaved pairs of steps, two real Gloo ranks, float32"
    yield Figure("lab 7's stage 3, throughput of FSDP2's", ratio, "x", "at least 0.95", ratio >= _BY_HAND_LEAST, how)


def _checkpointing(scale: float) -> Iterator[Figure]:
    """Peak memory of lab 6's checkpointed segments over that of torch's, and whether the gradients are the same."""
    source = solution_cells(ROOT / "solutions" / "lab06" / "lab06.py")["checkpointed"]
    options = {"world_size": 1, "cluster": "dgx-h100", "memory": True, "echo": False}
    for kind, most_tokens in (("transformer layers", 512), ("MLPs that end in dropout", 1024)):
        num_tokens = scaled(most_tokens, scale, least=32)
        plain, theirs, ours = (
            ws.run(_gradients, how, source, kind, num_tokens, **options) for how in ("plain", "torch", "by hand")
        )
        ratio = ours.memory[0].most_bytes / theirs.memory[0].most_bytes
        how = f"12 {kind}, {num_tokens} tokens, each recomputed; torch.utils.checkpoint; as recorded"
        name = f"lab 6's checkpointing over torch's, peak memory, {kind}"
        yield Figure(name, ratio, "x", "at most 1.05", ratio <= _MEMORY_MOST, how)
        wanted = plain.values[0]
        differing = [
            not (torch.equal(a, b) and torch.equal(a, c))
            for a, b, c in zip(wanted, theirs.values[0], ours.values[0], strict=True)
        ]
        how = f"of {len(wanted)}, in float32; a plain loop, torch's checkpoint and lab 6's"
        name = f"lab 6's checkpointing, gradients that differ, {kind}"
        yield Figure(name, sum(differing), "", "0", not any(differing), how)


def _gradients(how: str, source: str, kind: str, num_tokens: int) -> list[torch.Tensor]:
    """The gradients of the input and of all parameters after one forward and backward."""
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = dataclasses.replace(models.shape("small"), num_layers=12)
    if kind == "transformer layers":
        segments = [nn.Sequential(nn.Dropout(0.1), layer) for layer in models.Transformer(sizes).layers.values()]
    else:
        segments = [_mlp(sizes.width) for _ in range(12)]
    given = torch.randn(1, num_tokens, sizes.width, requires_grad=True)
    tensor = given
    if how == "by hand":
        lab: dict = {"torch": torch}
        exec(source, lab)
        tensor = lab["checkpointed"](segments, tensor)
    else:
        for segment in segments:
            tensor = checkpoint(segment, tensor, use_reentrant=False) if how == "torch" else segment(tensor)
    tensor.square().mean().backward()
    return [one.grad for one in (given, *nn.ModuleList(segments).parameters())]


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))


def _run(cluster: str, how: str, source: str, num_tokens: int) -> float:
    options = {"world_size": _NUM_RANKS, "cluster": cluster, "echo": False, "timeout_s": 300}
    return ws.run(_step_s, how, source, num_tokens, **options).values[0]


def _step_s(how: str, source: str, num_tokens: int) -> float:
    """The virtual seconds of a second forward and backward; in the first one DDP cuts its buckets."""
    model = models.Transformer(models.shape("small")).to(torch.bfloat16)
    step = _stepping(how, source, model)
    tokens = torch.zeros(1, num_tokens, dtype=torch.long)
    for _ in range(2):
        start_s = emulate.elapsed()
        step(tokens)
        end_s = emulate.elapsed()
    return end_s - start_s


def _stepping(how: str, source: str, model: models.Transformer):
    """A function that runs a forward and a backward, and has no gradients at its beginning."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    parts = [part for part in (model.embedding, *model.layers.values(), model.norm, model.head) if part is not None]
    units, finish, called = [], lambda: None, model
    if how == "by hand":
        lab = solved(source)
        blocks = lab.make_blocks(parts)
        units = lab.units_of(blocks)
        finish = lab.FullyShard(blocks, lab.Prefetching(blocks)).finish
    elif how.startswith("FSDP2"):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in [*(parts if how == "FSDP2 by part" else model.layers.values()), model]:
            fully_shard(layer, mesh=mesh)
    else:
        called = DistributedDataParallel(model)

    def step(tokens: torch.Tensor) -> None:
        model.zero_grad()
        for unit in units:
            unit.gradient = None
        called(tokens).float().logsumexp(-1).mean().backward()
        finish()

    return step


def _pairs(source: str, num_pairs: int) -> list[tuple[float, float]]:
    """Seconds of a step with FSDP2 and of one by hand, in turn, after a first one each."""
    torch.set_num_threads(1)
    steps = [_stepping(how, source, models.Transformer(models.shape("small"))) for how in ("FSDP2 by part", "by hand")]
    tokens, pairs = torch.zeros(1, 128, dtype=torch.long), []
    for number in range(num_pairs + 1):
        taken_s = []
        for step in steps:
            dist.barrier()
            start_s = time.perf_counter()
            step(tokens)
            dist.barrier()
            taken_s.append(time.perf_counter() - start_s)
        if number:
            pairs.append((taken_s[0], taken_s[1]))
    return pairs
