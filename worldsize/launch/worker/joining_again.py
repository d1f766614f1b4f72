"""`init_process_group` on a rank that `worldsize.run` has already joined: programs call it without an address."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


def install(store: Any, rank: int, world_size: int) -> None:
    """Let this rank join again through `store` once it has left its group; until then, refuse with an explanation."""
    before = dist.init_process_group
    signature, worlds = inspect.signature(before), itertools.count(2)

    @functools.wraps(before)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if dist.is_initialized():
            raise RuntimeError(
                "this rank has joined its process group already, because worldsize.run does that: leave out "
                "init_process_group, or call destroy_process_group first to join again"
            )
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        has_own_way = given.get("store") is not None or given.get("init_method") not in (None, "env://")
        if not has_own_way and "MASTER_ADDR" not in os.environ:
            again = dist.PrefixStore(f"world {next(worlds)}", store)  # pyright: ignore[reportPrivateImportUsage]
            given |= {"init_method": None, "store": again}
            given |= {"rank": given.get("rank", rank), "world_size": given.get("world_size", world_size)}
        before(*bound.args, **bound.kwargs)

    dist.init_process_group = distributed_c10d.init_process_group = init_process_group
