"""The flops and bytes of a call of one of torch's operators, for its price."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from worldsize.hardware import DTYPES
from worldsize.memory.meter import tensors_in
from worldsize.operators import Kind, Operator

_ATEN = torch.ops.aten
_COUNTED_AS = {  # torch counts flops only for the GPU's kernels
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _ATEN._scaled_dot_product_flash_attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _ATEN._scaled_dot_product_flash_attention_backward,
}


def _grouped_flops(left: torch.Tensor, right: torch.Tensor, *_: Any, out_val: torch.Tensor, **_options: Any) -> float:
    """The flops of a grouped matmul; with two 2-D inputs, the groups split the summed dimension."""
    num_summed = left.shape[-1] / (out_val.shape[0] if left.dim() == right.dim() == 2 else 1)
    return 2 * out_val.numel() * num_summed


def _product_flops(left: torch.Tensor, _right: torch.Tensor, *_: Any, out_val: torch.Tensor, **_options: Any) -> float:
    return 2 * out_val.numel() * left.shape[-1]


def _sum_of_products_flops(_: Any, left: torch.Tensor, right: torch.Tensor, *_more: Any, **_options: Any) -> float:
    return 2 * left.numel() * right.shape[-1]


_NOT_IN_TORCHS_TABLE = {
    _ATEN._grouped_mm: _grouped_flops,
    _ATEN._int_mm: _product_flops,
    _ATEN._addmm_activation: _sum_of_products_flops,
    _ATEN.addbmm: _sum_of_products_flops,
}
TORCHS_OWN = frozenset((  # namespaces of operators
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native", "_quantized",
    "_test", "aten", "c10d", "c10d_functional", "debug_mode_ops", "debugprims",
    "export", "flex_lib", "fsdp", "inductor", "inductor_prims", "mkl",
    "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "pippy",
    "prim", "prims", "profiler", "quantization", "quantized", "rngprims",
    "sparse", "static_runtime", "streams", "symm_mem",
))  # fmt: skip
_TAKE_PARTS = {"embedding", "gather", "index", "index_select"}  # operators that read only parts of their first argument
# operators that overwrite their first argument without reading it
_OVERWRITE = {"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"}
_FILL = {"arange", "full", "full_like", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "zeros", "zeros_like"}
_MOVE = {"_to_copy", "cat", "clone", "embedding_dense_backward", "index_put", "index_put_", "roll", "scatter", "stack"}
_COPIES = _TAKE_PARTS | _OVERWRITE | _FILL | _MOVE


def is_custom(func: Any) -> bool:
    """Whether the program or a library defined the operator with `torch.library`."""
    return func.namespace not in TORCHS_OWN


def has_formula(func: Any) -> bool:
    """Whether an operator's flops are counted."""
    return _count_of(func) is not None


def _count_of(func: Any) -> Any:
    packet = func.overloadpacket
    return _NOT_IN_TORCHS_TABLE.get(packet) or flop_registry.get(_COUNTED_AS.get(packet, packet))


def operator_of(func: Any, args: Any, kwargs: Any, out: Any) -> Operator:
    """Compute the work of a call that returned `out`.

    Flops are counted as in torch.utils.flop_counter, but halved for causal attention, whose kernels skip what the mask
    hides.
    """
    count = _count_of(func)
    flops = count(*args, **kwargs, out_val=out) if count else 0
    kind = _kind(func, is_counted=count is not None)
    if kind == "attention" and _argument(func, args, kwargs, "is_causal"):
        flops /= 2
    outputs = tensors_in(out) if func._schema.returns else tensors_in(args[:1])  # _foreach_add_ and the like
    dtypes = [one.dtype for one in (*tensors_in(args), *outputs) if one.dtype.is_floating_point]
    moved = [*_read(func.overloadpacket.__name__, args, outputs), *outputs]
    size_bytes = sum(one.numel() * one.element_size() for one in moved)
    return Operator(kind, _name_of(dtypes[0]) if dtypes else "", flops, size_bytes)


def _kind(func: Any, is_counted: bool) -> Kind:
    name = func.overloadpacket.__name__
    if is_counted:
        return "attention" if "attention" in name else "matmul"
    return "copy" if name in _COPIES or func.namespace == "fsdp" else "elementwise"


def _read(name: str, args: Any, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors as large as the data that is read."""
    if name in _TAKE_PARTS:
        return [*tensors_in(args[1:]), *outputs]
    return tensors_in(args[1:] if name in _OVERWRITE else () if name in _FILL else args)


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Return the value of an argument; None if it was omitted or the operator lacks it."""
    if name in kwargs:
        return kwargs[name]
    names = [argument.name for argument in func._schema.arguments]
    return args[names.index(name)] if name in names[: len(args)] else None


def _name_of(dtype: torch.dtype) -> str:
    """Return the type's name in `worldsize.hardware.DTYPES`, empty for others; all float8 types have the same rate."""
    name = str(dtype).removeprefix("torch.")
    name = "float8" if name.startswith("float8") else name
    return name if name in DTYPES else ""
