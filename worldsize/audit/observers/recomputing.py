"""Observer of activation checkpointing: whether the recomputed forward pass is the first one."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
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
            drawn: list[tuple[Any, Any]] = []  # states of generators before and after the first pass

            def watched(*inputs: Any, **options: Any) -> Any:
                number[0] += 1
                record: list[tuple[str, float | None]] = first if number[0] == 1 else []
                self._operators.recorders.append(record)
                before = _states()
                try:
                    return function(*inputs, **options)
                finally:
                    drawn.append((before, _states()))
                    self._operators.recorders[:] = [one for one in self._operators.recorders if one is not record]
                    if number[0] > 1 and not self._draws_anew(function, line, *drawn[0], before):
                        self._compare(function, line, first, record)

            return checkpoint(watched, *args, **kwargs)

        return called

    def _draws_anew(self, function: Any, line: Any, before: Any, after: Any, again: Any) -> bool:
        """Note a generator that the region draws from and that is not what it was in the first pass."""
        for name, was, became, now in zip(("Python's random", "NumPy's generator"), before, after, again, strict=True):
            if became != was != now:
                about = {"function": _name_of(function), "number": 0, "first": name, "second": name}
                self._notebook.say("recomputed differently", line, **about)
                return True
        return False

    def _compare(self, function: Any, line: Any, first: list[Any], second: list[Any]) -> None:
        with contextlib.suppress(Exception):
            for place, (one, other) in enumerate(zip(first, second, strict=False)):
                same = one[1] == other[1] or (one[1] != one[1] and other[1] != other[1])
                if one[1] is not None and other[1] is not None and not same:
                    same = abs(one[1] - other[1]) <= 1e-3 * max(abs(one[1]), abs(other[1]), 1e-6)
                if one[0] != other[0] or not same:
                    about = {"function": _name_of(function), "number": place + 1, "first": one[0], "second": other[0]}
                    self._notebook.say("recomputed differently", line, **about)
                    return


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _states() -> tuple[Any, Any]:
    """The states of the generators that activation checkpointing does not restore."""
    numpy_state: Any = np.random.get_state(legacy=True)
    return random.getstate(), (numpy_state[1].tobytes(), *numpy_state[2:])
