"""Observer of forward passes in training: what enters a model and what its modules return, summed over rows.

The sums of all ranks are those of one rank that gets all their rows, in whatever order and in however many
micro-batches, so that programs on different numbers of ranks can be compared.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import sketch


class PassingObserver:
    """An observer of the inputs of whole models and of the outputs of all modules, from step to step."""

    def __init__(self, notebook: Notebook, names: Names) -> None:
        self._notebook, self._names = notebook, names
        self._depth = 0
        self._known: dict[int, tuple[str, int]] = {}  # id of a module -> name, and a whole model's parameters
        self._sums: dict[tuple[str, str, int, int], _RowSums] = {}

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        replace(stack, nn.Module, "__call__", self._wrap_call)  # hooks would miss what later hooks change
        stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)

    def _wrap_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            is_recomputed = torch._C._current_graph_task_id() != -1
            if is_recomputed or not torch.is_grad_enabled():
                return call(module, *args, **kwargs)
            self._depth += 1
            try:
                output = call(module, *args, **kwargs)
            finally:
                self._depth -= 1
            with quietly():
                self._note(module, (args, kwargs), output)
                if not self._depth:
                    self._known.clear()
            return output

        return observed

    def _note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._known:
            for prefix, name, one in self._names.modules():
                self._known[id(one)] = prefix + name, 0 if name else sum(1 for _ in one.parameters())
        name, num_parameters = self._known.get(id(module), ("", 0))
        if num_parameters:
            self._add("input", name, num_parameters, inputs)
        if name:
            self._add("output", name, num_parameters, output)

    def _add(self, kind: str, name: str, num_parameters: int, values: Any) -> None:
        tensors = (one.detach() for one in tree_leaves(values) if isinstance(one, torch.Tensor))
        tensor = next((one for one in tensors if one.dim() and one.numel()), None)
        if tensor is not None and (local := _local(tensor)) is not None:
            rows = local.reshape(-1, local.shape[-1]) if local.dim() > 1 else local[:, None]
            key = kind, name, num_parameters, rows.shape[1]
            self._sums.setdefault(key, _RowSums()).add(rows.to(torch.float64))

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with quietly():
            passed = [[*key, sums.num_rows, sums.sketch] for key, sums in self._sums.items()]
            self._sums.clear()
            self._notebook.say("passed", of=passed)


class _RowSums:
    """Rows, summed."""

    def __init__(self) -> None:
        self.num_rows, self._squares, self._total = 0, 0.0, torch.zeros(())

    def add(self, rows: torch.Tensor) -> None:
        self.num_rows += len(rows)
        self._squares += float(rows.square().sum())
        # of absolute values too: centred rows, as a batch norm leaves them, sum to zero
        self._total = self._total.to(rows.device) + torch.cat([rows.sum(0), rows.abs().sum(0)])

    @property
    def sketch(self) -> list[float]:
        """The norm of all rows, and projections of their sums."""
        return [math.sqrt(self._squares), *sketch(self._total)[1:]]


def _local(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's rows on this rank; None if the rank has no whole rows of it."""
    placements = getattr(tensor, "placements", ())
    columns = tensor.dim() - 1
    if any(one.is_partial() or one.is_shard(columns) or one.is_shard(-1) for one in placements):
        return None
    return tensor.to_local() if placements else tensor  # pyright: ignore[reportAttributeAccessIssue]
