"""What a step with FSDP2 takes beside one with DDP, in virtual time, and lab 7's stage 3 by hand beside FSDP2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from figures import Figure, scaled
from zero_by_hand import solution_source, solved

import worldsize as ws
from worldsize import emulate, models

_NUM_RANKS = 4
_MOST = 0.15  # of DDP's step, which published runs with FSDP report at worst
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
    num_pairs = scaled(15, scale, least=3)
    run = ws.run(_pairs, source, num_pairs, world_size=2, backend="gloo", echo=False, timeout_s=300)
    ratio = statistics.median(theirs_s / by_hand_s for theirs_s, by_hand_s in run.values[0])
    how = f"median of {num_pairs} interleaved pairs of steps, two real Gloo ranks, float32"
    yield Figure("lab 7's stage 3, throughput of FSDP2's", ratio, "x", "at least 0.95", ratio >= _BY_HAND_LEAST, how)


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
