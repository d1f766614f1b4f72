"""A process group on paper: every call of torch.distributed is recorded but moves no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from worldsize.emulate.worker import backend
from worldsize.gpus.answers import Gpus
from worldsize.memory.meter import note_communication, tensors_in
from worldsize.paper import torch_internals
from worldsize.paper.no_data import refusal
from worldsize.paper.recorder import PaperWork, Recorder

BACKEND = "paper"


class PaperGroup(backend.EmulatedGroup):
    """An emulated cluster's group whose calls go to a recorder."""

    _client: Recorder

    def getBackendName(self) -> str:
        """Return the backend's name, as torch shows it."""
        return BACKEND

    def _post(
        self,
        op: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        result: Any = None,
        **fields: Any,
    ) -> PaperWork:
        note_communication([*inputs, *outputs])
        is_given = op == "broadcast" and fields.get("peer") == self._client.rank
        if len(self.ranks) > 1 and not is_given:
            torch_internals.forget_values(outputs)
        result = list(outputs) if result is None else result
        return self._client.post(op, self._wire_name, self.ranks, inputs, outputs, result, **fields)

    def _all_reduce_sparse(self, tensors: Sequence[torch.Tensor], reduction: str) -> NoReturn:
        """Raise NoData: how many values the other ranks' tensors hold is in their data."""
        raise refusal("on paper nobody knows how many values a sparse tensor holds: all_reduce it with to_dense()")

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> NoReturn:
        """Raise NoData: which rank's message comes first depends on time."""
        raise refusal("on paper nobody knows whose message comes first: name the sender, as in recv(tensor, src=...)")


def join(recorder: Recorder, gpus: Gpus) -> None:
    """Make the recorder's rank a member of a default process group on paper."""

    def make(options: Any, _backend_options: Any) -> PaperGroup:
        ranks = options.global_ranks_in_group or range(recorder.world_size)
        return PaperGroup(recorder, options.group_id, ranks)  # type: ignore[arg-type]

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    backend.lead_here(BACKEND, recorder, gpus)
    # the job's other ranks do not exist, so a barrier of the store would never end
    distributed_c10d._store_based_barrier = lambda *_args, **_options: None
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(BACKEND, store=store, rank=recorder.rank, world_size=recorder.world_size)
    recorder.log.communicate = _Functional().communicate


class _Functional:
    """The collectives of `torch.ops._c10d_functional`, turned into calls of their groups."""

    def __init__(self) -> None:
        self._under_way: dict[int, PaperWork] = {}  # address of the result's storage -> work

    def communicate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record an operator as its group's call, or as the wait for one, and return its result."""
        name = func.overloadpacket.__name__
        if name == "_wrap_tensor_autograd":  # torch's fake result for it cannot be waited for
            return AsyncCollectiveTensor(args[0])
        if name == "wait_tensor":
            if work := self._under_way.pop(args[0].untyped_storage()._cdata, None):
                work.wait()
            return args[0]  # torch's fake result has its own memory
        if name not in _CALLS:
            raise NotImplementedError(
                f"on paper torch.ops._c10d_functional.{name} is not known: call torch.distributed"
            )
        out = func(*args, **kwargs)
        work = _CALLS[name](torch_internals.group_of(args[-1]), args, out)
        for one in tensors_in(out):
            self._under_way[one.untyped_storage()._cdata] = work
        return out


def _all_to_all(group: Any, args: Any, out: Any) -> PaperWork:
    return group.all_to_all_single(out, args[0], args[1], args[2])


def _each(call: str) -> Callable[[Any, Any, Any], PaperWork]:
    """Make a function that calls once per tensor; the last work stands for all, since a group's calls end in order."""

    def calls(group: Any, args: Any, out: Any) -> PaperWork:
        pairs = zip(tensors_in(out), tensors_in(args[:1]), strict=True)
        *_, last = (getattr(group, call)(output, tensor) for output, tensor in pairs)
        return last

    return calls


def _all_reduce(group: Any, args: Any, out: Any) -> PaperWork:
    return group.allreduce(tensors_in(out))


def _broadcast(group: Any, args: Any, out: Any) -> PaperWork:
    options = dist.BroadcastOptions()  # pyright: ignore[reportPrivateImportUsage]
    options.rootRank = args[1]
    return group.broadcast(tensors_in(out), options)


_CALLS: dict[str, Callable[[Any, Any, Any], PaperWork]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "all_reduce_coalesced_": _all_reduce,
    "all_gather_into_tensor": _each("all_gather_single"),
    "all_gather_into_tensor_out": _each("all_gather_single"),
    "all_gather_into_tensor_coalesced": _each("all_gather_single"),
    "reduce_scatter_tensor": _each("reduce_scatter_single"),
    "reduce_scatter_tensor_out": _each("reduce_scatter_single"),
    "reduce_scatter_tensor_coalesced": _each("reduce_scatter_single"),
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "broadcast_": _broadcast,
}
