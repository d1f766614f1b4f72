"""A program on paper that says "cuda": what it moves there stays where it is, and what needs a GPU is refused."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch

_WITH_STREAMS = ("current_stream", "default_stream", "set_stream")


def stand_in() -> None:
    """Have this process take a tensor moved to a GPU as its own, and answer or refuse `torch.cuda`."""
    torch.Tensor.to = _to_cpu(torch.Tensor.to)
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.synchronize = torch.cuda.set_device = lambda *_args, **_kwargs: None
    torch.cuda.current_device = lambda: 0
    torch.cuda._lazy_init = _refused
    for name in _WITH_STREAMS:
        setattr(torch.cuda, name, _refused)
    for kind in (torch.cuda.Stream, torch.cuda.Event):
        kind.__new__ = _refused


def _refused(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("on paper there is no CUDA: leave out this call, and say ws.device() for a rank's device")


def _to_cpu(to: Any) -> Any:
    @functools.wraps(to)
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        return to(self, *map(_here, args), **kwargs)

    return call


def _here(value: Any) -> Any:
    """The CPU for a GPU, anything else as it is."""
    is_gpu = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    return torch.device("cpu") if is_gpu else value
