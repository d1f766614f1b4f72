"""Files of a program on paper: what `torch.save` would write takes its time and is not written."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch

from worldsize.emulate.worker import files
from worldsize.emulate.worker.client import Client
from worldsize.paper.recorder import Recorder


def write_nothing(recorder: Recorder) -> None:
    """Record the copies and writes of `torch.save` to a path in this process, as the emulated cluster prices them.

    A file in memory is left to torch, which refuses to save what has no data.
    """
    save, client = torch.save, cast(Client, recorder)

    @functools.wraps(save)
    def record(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if (path := files.path_of(f)) is None:
            save(obj, f, *args, **kwargs)
            return
        size_bytes = files.bytes_on_gpu(obj)
        files.transfer_if_described(client, "to host", size_bytes, "torch.save")
        files.transfer_if_described(client, files.transfer_of_file(client, path, "write"), size_bytes, "torch.save")

    torch.save = torch.serialization.save = record
