"""Checkpoints of `torch.distributed.checkpoint` on an emulated rank: staging, writing and reading take virtual time.

A checkpoint of tensors that were not staged copies them to the host as it is written. Torch stages in the thread that
calls `async_save` and writes in a different one, with its own lane, so only the staging holds up the program.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from worldsize.emulate.worker import files
from worldsize.emulate.worker.client import Client
from worldsize.emulate.worker.wrapping import around
from worldsize.gpus.imports import when_imported
from worldsize.memory import host

_PACKAGE = "torch.distributed.checkpoint"


def install(client: Client) -> None:
    """Let checkpoints take virtual time in this process, once the program has imported torch's modules for them."""
    staged, written, read = (partial(one, client) for one in (_staged, _written, _read))
    for module, owner, name, call in (
        ("staging", "BlockingAsyncStager", "stage", staged),
        ("_state_dict_stager", "StateDictStager", "stage", staged),
        ("filesystem", "_FileSystemWriter", "write_data", written),
        ("filesystem", "FileSystemReader", "read_data", read),
    ):
        when_imported(f"{_PACKAGE}.{module}", partial(_change, owner=owner, name=name, call=call))


def _change(module: Any, owner: str, name: str, call: Callable[..., Any]) -> None:
    around(getattr(module, owner), name, call)


def _staged(client: Client, before: Callable[..., Any], stager: Any, state_dict: Any, **options: Any) -> Any:
    with client.unmetered(), host.unseen_by_gpu():
        staged = before(stager, state_dict, **options)
    with contextlib.suppress(Exception):  # on an error, the transfer takes no time
        files.transfer_if_described(client, "to host", files.bytes_on_gpu(state_dict), "staging")
        files.note_on_host(staged)
    return staged


def _written(client: Client, before: Callable[..., Any], writer: Any, plan: Any, planner: Any) -> Any:
    with client.unmetered():
        results = before(writer, plan, planner)
    with contextlib.suppress(Exception):
        tensors = [planner.resolve_data(item) for item in plan.items if item.tensor_data is not None]
        if copied_bytes := files.bytes_on_gpu(tensors):
            files.transfer_if_described(client, "to host", copied_bytes, "save")
        _transfer_files(client, "write", writer.path, [one.storage_data for one in results.value()])
    return results


def _read(client: Client, before: Callable[..., Any], reader: Any, plan: Any, planner: Any) -> Any:
    with client.unmetered():
        done = before(reader, plan, planner)
    with contextlib.suppress(Exception):
        parts = [reader.storage_data[item.storage_index] for item in plan.items]
        _transfer_files(client, "read", reader.path, parts)
        tensors = [planner.resolve_tensor(item) for item in plan.items if item.type.name == "TENSOR"]
        files.transfer_if_described(client, "to device", sum(one.nbytes for one in tensors), "load")
    return done


def _transfer_files(client: Client, direction: str, folder: Any, parts: Sequence[Any]) -> None:
    """Let the current lane wait while these parts of the files in a folder are read or written."""
    size_bytes: Counter[str] = Counter()
    for part in parts:
        size_bytes[part.relative_path] += part.length
    for name, of_file_bytes in size_bytes.items():
        transfer = files.transfer_of_file(client, os.path.join(folder, name), direction)
        files.transfer_if_described(client, transfer, of_file_bytes, {"read": "load", "write": "save"}[direction])
