"""What a step with FSDP2 takes beside one with DDP, in virtual time: gathering the weights hides behind compute."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from figures import Figure, scaled

import worldsize as ws
from worldsize import emulate, models

_NUM_RANKS = 4
_MOST = 0.15  # of DDP's step, which published runs with FSDP report at worst


def sharding(scale: float) -> Iterator[Figure]:
    """FSDP2's forward and backward over DDP's, for the small transformer with few tokens and with many."""
    for cluster in ("dgx-h100", "pcie-box"):
        for num_tokens in (16, scaled(1024, scale, least=32)):
            more = _more(cluster, num_tokens)
            how = f"{num_tokens} tokens on each of {_NUM_RANKS} ranks, bfloat16, emulated"
            yield Figure(f"FSDP2 over DDP, {cluster}", 100 * more, "% more", "at most 15", more <= _MOST, how)


def _more(cluster: str, num_tokens: int) -> float:
    sharded_s, replicated_s = (
        ws.run(
            _step_s, is_sharded, num_tokens, world_size=_NUM_RANKS, cluster=cluster, echo=False, timeout_s=300
        ).values[0]
        for is_sharded in (True, False)
    )
    return sharded_s / replicated_s - 1


def _step_s(is_sharded: bool, num_tokens: int) -> float:
    """The virtual seconds of a second forward and backward; in the first one DDP cuts its buckets."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = models.Transformer(models.shape("small")).to(torch.bfloat16)
    if is_sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in [*model.layers.values(), model]:
            fully_shard(layer, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    tokens = torch.zeros(1, num_tokens, dtype=torch.long)
    for _ in range(2):
        model.zero_grad()
        start_s = emulate.elapsed()
        model(tokens).float().logsumexp(-1).mean().backward()
        end_s = emulate.elapsed()
    return end_s - start_s
