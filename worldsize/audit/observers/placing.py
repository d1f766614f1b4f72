"""Observer of DTensors: whether what a program declares to be the same on all ranks is the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.observers.training import TrainingObserver
from worldsize.audit.sketches import sketch

_MOST_NOTED = 5000


class PlacingObserver:
    """An observer of local tensors that become replicated DTensors."""

    def __init__(self, notebook: Notebook, training: TrainingObserver) -> None:
        self._notebook, self._training = notebook, training
        self._num_noted = 0

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        from torch.distributed.tensor import DTensor

        replace(stack, DTensor, "from_local", self._wrap_from_local)

    def _wrap_from_local(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(local: Any, *args: Any, **kwargs: Any) -> Any:
            result = make(local, *args, **kwargs)
            with quietly():
                if (
                    self._num_noted < _MOST_NOTED
                    and self._training.is_due
                    and isinstance(local, torch.Tensor)
                    and local.numel() > 1
                    and result.device_mesh.ndim == 1
                    and result.device_mesh.size() > 1
                    and result.placements[0].is_replicate()
                ):
                    self._num_noted += 1
                    ranks = list(result.device_mesh.mesh.flatten().tolist())
                    self._notebook.say("replicated", mesh=ranks, content=sketch(local))
            return result

        return made
