"""The undocumented parts of torch that a rank on paper uses. Each has a test that fails when torch changes it."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import _functional_collectives, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from worldsize.memory.meter import forget

_OF_MESH = (
    "__getitem__",
    "__repr__",
    "_compute_coordinates_from_mesh",
    "_concatenate",
    "_create_flatten_mesh",
    "_create_sub_mesh",
    "_flatten",
    "_get_all_submeshes",
    "_get_mesh_tensor_from_full_mesh",
    "_unflatten",
    "from_group",
    "get_coordinate",
)
_OF_STAGES = ("_recv_meta", "_send_meta")
_OF_SHARDING = ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached")


def keep_host_work_real() -> None:
    """Let torch use real numbers for work about ranks and shapes, which no rank's GPU does.

    This covers the coordinates of meshes, the trial of each new operator on the full shape of a DTensor, and the order
    of samples with its seeds.
    """
    for name in _OF_MESH:
        _replace(DeviceMesh, name, _real)
    DeviceMesh.mesh = property(_real(cast(Any, DeviceMesh.mesh).fget))
    _replace(DeviceMesh, "__init__", _with_real_ranks)
    for name in _OF_SHARDING:
        _replace(ShardingPropagator, name, _real)
    _fully_shard._get_post_forward_mesh_info = _real(_fully_shard._get_post_forward_mesh_info)
    for kind in (RandomSampler, SubsetRandomSampler, DistributedSampler):
        kind.__iter__ = _all_at_once(kind.__iter__)
    _BaseDataLoaderIter.__init__ = _real(_BaseDataLoaderIter.__init__)
    _MultiProcessingDataLoaderIter.__init__ = _refuse_workers


def trace_nothing() -> None:
    """Let torch.distributed treat fake tensors like others, rather than as a compiler's."""
    _functional_collectives._are_we_tracing.__code__ = (lambda: False).__code__  # several modules have the function


def infer_shapes_for_real() -> None:
    """Let pipeline stages agree on their shapes with real data, which their processes exchange."""
    for name in _OF_STAGES:
        _replace(PipelineStage, name, _real)
    vote = _PipelineSchedule._warmup_p2p
    _PipelineSchedule._warmup_p2p = _real(vote)


def convert_in_place() -> None:
    """Let a module's `to`, `to_empty` and the like change fake parameters in place, as they change others.

    Torch would swap fake parameters with new tensors, which fails if there are weak references to them, and torch's own
    modes and a meter hold some.
    """
    swap = torch.utils.swap_tensors

    def convert(tensor: torch.Tensor, other: torch.Tensor) -> None:
        is_fake = isinstance(tensor, FakeTensor) and isinstance(other, FakeTensor)
        if is_fake and tensor.fake_device == other.fake_device:
            tensor.data = other.data
            return
        if is_fake:  # from "meta" to a device
            forget(tensor)
            memo = tensor.fake_mode.fake_tensor_converter.tensor_memo
            for key in [key for key, known in memo.items() if known is tensor or known is other]:
                del memo[key]
        swap(tensor, other)

    torch.utils.swap_tensors = convert


def shard_without_others() -> None:
    """Let FSDP2 make this rank's shard of each parameter without views of all other ranks' shards.

    The views cost nothing on a GPU, but with 1,024 ranks they would take most of a record's time.
    """
    _fsdp_param._chunk_with_empty = _Shards


def truncate_without_looking() -> None:
    """Let `trunc_normal_` clamp what it draws, rather than look whether a number must be drawn again."""

    def draw(tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> torch.Tensor:
        with torch.no_grad():
            return tensor.normal_(mean, std, generator=generator).clamp_(a, b)

    torch.nn.init._no_grad_trunc_normal_ = draw


class _Shards:
    """The equal shards of a tensor along a dim, the last ones smaller or empty, each made on access."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._num, self._dim = tensor, num_chunks, dim
        self._length = tensor.size(dim)
        self._size = -(-self._length // num_chunks)

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, place: int) -> torch.Tensor:
        start = min(range(self._num)[place] * self._size, self._length)
        size = min(self._size, self._length - start)
        if not size:  # one-dimensional, as in torch
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, size)


def give_addresses() -> None:
    """Give each storage of a fake tensor a distinct address, with which programs and FSDP2 tell storages apart."""
    address = torch.UntypedStorage.data_ptr

    def of_storage(storage: torch.UntypedStorage) -> int:
        return storage._cdata * (storage.nbytes() > 0) if storage.device.type == "meta" else address(storage)

    def of_tensor(tensor: torch.Tensor) -> int:
        begin = tensor.untyped_storage().data_ptr()
        return begin and begin + int(tensor.storage_offset()) * tensor.element_size()

    torch.UntypedStorage.data_ptr = of_storage
    FakeTensor.data_ptr = of_tensor


def forget_values(tensors: Sequence[torch.Tensor]) -> None:
    """Make torch forget the constant values that it remembers for small fake tensors."""
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)


def group_of(group: Any) -> Any:
    """Return the process group that an operator was given, directly or by name."""
    return group if isinstance(group, dist.ProcessGroup) else distributed_c10d._resolve_process_group(group)


def _replace(owner: type, name: str, change: Callable[[Any], Any]) -> None:
    found = vars(owner).get(name)
    if isinstance(found, staticmethod | classmethod):
        setattr(owner, name, type(found)(change(found.__func__)))
    elif found is not None:
        setattr(owner, name, change(found))


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


def _all_at_once(order: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a sampler's order so that all of it is drawn with real numbers before the first sample."""

    @functools.wraps(order)
    def call(sampler: Any) -> Any:
        with _disable_current_modes():
            return iter(list(order(sampler)))

    return call


def _refuse_workers(*_: Any) -> None:
    raise NotImplementedError(
        "on paper a DataLoader has no workers: pass num_workers=0, so that it reads while the step waits"
    )


def _with_real_ranks(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a mesh's constructor so that a fake tensor of all ranks is replaced with a real one."""

    @functools.wraps(init)
    def call(mesh: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            if isinstance(ranks := kwargs.get("_rank_map"), FakeTensor):
                kwargs["_rank_map"] = torch.arange(ranks.numel(), dtype=torch.int)
            init(mesh, *args, **kwargs)

    return call
