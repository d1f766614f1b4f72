"""Encoding of values as bytes without pickle, so that decoding bytes from an untrusted process never runs code.

A value is JSON, with its tensors and bytes in a safetensors block.
"""

# a tree of JSON can have any shape
# pyright: basic

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 32
MAX_TREE_BYTES = 8 << 20  # a few bytes of JSON become a hundred of Python objects; tensors keep their size
_KEYS = (str, int)  # by exact type: True is an int too


def encode(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, list, tuple, dict with str or int keys, and tensors.

    NumPy scalars become Python's: an `np.float64` comes back as a float.

    Raises:
        ValueError: the value holds something else, is nested deeper than `MAX_DEPTH`, or is too long without tensors.
    """
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    tree = json.dumps(_to_tree(value, tensors, depth=0))
    if len(tree) > MAX_TREE_BYTES:
        raise ValueError(f"a value of {len(tree)} characters cannot leave a rank; return long lists as tensors")
    try:
        return save(tensors, metadata={"tree": tree})
    except KeyError as dtype:
        raise ValueError(f"a tensor of type {dtype} cannot leave a rank; convert it to another type first") from None


def decode(data: bytes) -> Any:
    """Decode what `encode` returned; tuples come back as tuples, tensors on the CPU.

    Raises:
        ValueError: `encode` cannot have returned these bytes.
    """
    try:
        header_bytes = int.from_bytes(data[:8], "little")
        if header_bytes > 4 * MAX_TREE_BYTES:
            raise ValueError(
                f"the value without its tensors has {header_bytes} bytes; the limit is {4 * MAX_TREE_BYTES}"
            )
        header = json.loads(data[8 : 8 + header_bytes])
        tree = json.loads(header["__metadata__"]["tree"])
        return _from_tree(tree, _load(data) if len(header) > 1 else {}, depth=0)
    except Exception as error:  # malicious bytes can cause any error; the caller gets one type
        raise ValueError(f"the bytes do not encode a value that a rank can return: {error}") from None


def _load(data: bytes) -> dict[str, Any]:
    from safetensors.torch import load  # imports torch, which the launcher may not need

    return load(data)


def _to_tree(value: Any, tensors: dict[str, Any], depth: int) -> Any:
    import torch

    value = _without_numpy(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"a value nested deeper than {MAX_DEPTH} levels cannot leave a rank; return it flatter")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor | bytes):
        name = str(len(tensors))
        tensors[name] = _of_bytes(value) if isinstance(value, bytes) else _plain(value)
        return {"bytes" if isinstance(value, bytes) else "tensor": name}
    if isinstance(value, list | tuple):
        items = [_to_tree(item, tensors, depth + 1) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        value = {_without_numpy(key): item for key, item in value.items()}
        trees = {key: _to_tree(item, tensors, depth + 1) for key, item in value.items() if type(key) in _KEYS}
        if all(type(key) is str for key in value):
            return {"dict": trees}
        if len(trees) == len(value):
            return {"pairs": list(trees.items())}
    raise ValueError(
        f"a rank returned a {type(value).__name__}, which cannot leave it; "
        "return numbers, strings, bytes, lists, tuples, dicts whose keys are strings or integers, and tensors"
    )


def _without_numpy(value: Any) -> Any:
    """Convert a NumPy scalar to Python's number or string; return anything else as it is."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value


def _of_bytes(value: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0, dtype=torch.uint8)


def _plain(tensor: Any) -> Any:
    """Copy the tensor if needed: contiguous, on the CPU, and in its own storage."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_meta or hasattr(tensor, "to_local"):
        raise ValueError(
            "a rank returned a sparse, meta or distributed tensor, which cannot leave it; return its values as a "
            "plain one: to_dense(), to_local() or full_tensor()"
        )
    if tensor.ndim > MAX_DEPTH:
        raise ValueError(f"a tensor of {tensor.ndim} dimensions cannot leave a rank; reshape it first")
    return tensor.detach().cpu().contiguous().clone()


def _from_tree(tree: Any, tensors: dict[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("the value is nested too deeply")
    if isinstance(tree, list):
        return [_from_tree(item, tensors, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        if tensors[content].ndim > MAX_DEPTH:  # printing a tensor recurses by dimension
            raise ValueError("a tensor has too many dimensions")
        return tensors[content]
    if kind == "bytes":
        return tensors[content].numpy().tobytes()
    if kind == "tuple":
        return tuple(_from_tree(item, tensors, depth + 1) for item in content)
    if kind == "dict":
        return {key: _from_tree(item, tensors, depth + 1) for key, item in content.items()}
    if kind == "pairs" and all(type(key) in _KEYS for key, _ in content):
        return {key: _from_tree(item, tensors, depth + 1) for key, item in content}
    raise ValueError(f"the value has the unknown kind {kind!r}")
