"""What programs on paper cannot have of a GPU or beside it, refused in words that say what to write instead."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy

_NO_GPU = {  # torch's error without a GPU, and what to write instead
    "Cannot access accelerator": 'no GPU to number: use ws.device() as a rank\'s device, or torch.device("cuda", 0)',
    "FSDP needs a non-CPU accelerator": "no GPU for FullyShardedDataParallel: shard with fully_shard, which is FSDP2",
}


def refuse_offload() -> None:
    """Refuse to keep on the CPU what a GPU would: on paper there is one memory."""
    for kind in (CPUOffloadPolicy, CPUOffload, torch.autograd.graph.save_on_cpu):
        kind.__init__ = _refused_offload


@contextmanager
def saying_why() -> Iterator[None]:
    """Reword torch's errors about a missing GPU to say what to write instead.

    Raises:
        RuntimeError: the block raised it; reworded if it is one of these errors.
    """
    try:
        yield
    except RuntimeError as error:
        instead = next((instead for said, instead in _NO_GPU.items() if said in str(error)), None)
        if instead is None:
            raise
        raise RuntimeError(f"on paper there is {instead}").with_traceback(error.__traceback__) from None


def _refused_offload(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("on paper a rank has one memory, its GPU's: keep nothing on the CPU")
