"""Threads of a program on paper: their computation would not be recorded, so it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from torch.utils._python_dispatch import TorchDispatchMode

from worldsize.emulate.worker.wrapping import around
from worldsize.paper.no_data import NoData, refusal


class _Refusing(TorchDispatchMode):
    """The mode in which torch's operators are refused, and each refusal is recorded."""

    def __init__(self, refused: list[NoData]) -> None:
        super().__init__()
        self._refused = refused

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        error = refusal(
            "on paper what another thread computes is not recorded: compute it in the program's own thread, or run "
            "this on an emulated cluster"
        )
        self._refused.append(error)
        raise error


def refuse_operators() -> list[NoData]:
    """Refuse operators in new threads of this process; return the list to which refusals will be added."""
    refused: list[NoData] = []

    def start(before: Callable[..., Any], thread: Any) -> Any:
        run = thread.run

        def run_without_operators() -> None:
            with _Refusing(refused):
                run()

        thread.run = run_without_operators
        return before(thread)

    around(threading.Thread, "start", start)
    return refused
