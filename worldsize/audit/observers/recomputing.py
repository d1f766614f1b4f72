"""Observer of activation checkpointing: whether the recomputed forward pass is the first one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from worldsize.audit.notes import Notebook
from worldsize.audit.observers.operators import OperatorsObserver
from worldsize.audit.observers.patching import replace
from worldsize.source import line_of


class RecomputingObserver:
    """A comparer of the operators and results of a recomputation with those of the forward pass, as far as it gets."""

    def __init__(self, notebook: Notebook, operators: OperatorsObserver) -> None:
        self._notebook, self._operators = notebook, operators

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        replace(stack, torch.utils.checkpoint, "checkpoint", self._wrap)

    def _wrap(self, checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if "context_fn" in kwargs:  # some operators are kept and not run again
                return checkpoint(function, *args, **kwargs)
            first: list[tuple[str, float | None]] = []
            line, number = line_of(sys._getframe(1)), [0]

            def watched(*inputs: Any, **options: Any) -> Any:
                number[0] += 1
                record: list[tuple[str, float | None]] = first if number[0] == 1 else []
                self._operators.recorders.append(record)
                try:
                    return function(*inputs, **options)
                finally:
                    self._operators.recorders[:] = [one for one in self._operators.recorders if one is not record]
                    if number[0] > 1:
                        self._compare(function, line, first, record)

            return checkpoint(watched, *args, **kwargs)

        return called

    def _compare(self, function: Any, line: Any, first: list[Any], second: list[Any]) -> None:
        with contextlib.suppress(Exception):
            for place, (one, other) in enumerate(zip(first, second, strict=False)):
                same = one[1] == other[1] or (one[1] != one[1] and other[1] != other[1])
                if one[1] is not None and other[1] is not None and not same:
                    same = abs(one[1] - other[1]) <= 1e-3 * max(abs(one[1]), abs(other[1]), 1e-6)
                if one[0] != other[0] or not same:
                    name = getattr(function, "__name__", type(function).__name__)
                    about = {"function": name, "number": place + 1, "first": one[0], "second": other[0]}
                    self._notebook.say("recomputed differently", line, **about)
                    return
