"""A rank's side of the emulated cluster: a process group that sends every call to the conductor."""

# parameter names differ between versions of torch, which passes the arguments by position
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

import ctypes
import functools
import operator
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import constants, distributed_c10d
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from worldsize.emulate.protocol.messages import Compute, OperationFailed
from worldsize.emulate.protocol.operations import MONITORED, OF_BITS, REDUCTIONS, Forbidden
from worldsize.emulate.worker import checkpoints, files, loader_workers, sparse, streams, threads, torch_internals
from worldsize.emulate.worker.client import Client, Observer
from worldsize.emulate.worker.compute import meter_of
from worldsize.emulate.worker.steps import StepRecorder
from worldsize.emulate.worker.works import UNSET_TIMEOUTS, Work, lead_collected_futures, seconds
from worldsize.gpus import answers, attention, tensors
from worldsize.gpus.answers import Gpus
from worldsize.gpus.imports import when_imported
from worldsize.gpus.memory import GpuMemory
from worldsize.memory.ledger import line_of_program
from worldsize.memory.meter import note_communication
from worldsize.units import format_bytes, format_ranks

BACKEND = "emulated"
_MOST_BYTES = (1 << 31) - 1  # ctypes.string_at takes no more
_OF_MESH = "mesh_"  # prefix of torch's description of a group along a mesh dimension
_UNREDUCED = (torch.uint16, torch.uint32, torch.uint64)
_client: Any = None  # a `Client`, or a stand-in for one
_Tensors = torch.Tensor | Sequence[torch.Tensor]


class EmulatedGroup(dist.ProcessGroup):
    """A process group of ranks on the emulated cluster; `named_backend` is its backend as the program named it."""

    named_backend = ""

    def __init__(
        self, client: Client, name: str, ranks: Sequence[int], wire_name: str = "", timeout_s: float | None = None
    ) -> None:
        self.ranks = tuple(map(operator.index, ranks))
        super().__init__(self.ranks.index(client.rank), len(ranks))  # pyright: ignore[reportCallIssue]
        self._client, self._name, self._timeout_s = client, name, timeout_s
        self._unique_name = wire_name or name  # torch reuses names after groups are destroyed

    def getBackendName(self) -> str:
        """Return the backend's name, as torch shows it."""
        return BACKEND  # in C++ torch looks for a group's backend by this name

    def __repr__(self) -> str:
        return f"<{format_ranks(self.ranks)}>"

    @property
    def group_name(self) -> str:
        """Torch's name for the group."""
        return self._name

    @functools.cached_property
    def _wire_name(self) -> str:
        """The group's name for the conductor and the timeline; of a mesh, it begins with the dimension's."""
        axis = self.group_desc.removeprefix(_OF_MESH)
        return f"{axis} {self._unique_name}" if self.group_desc.startswith(_OF_MESH) else self._unique_name

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group accepts; torch asks for them before it saves a checkpoint."""
        return [torch.device("cpu")]

    def _get_backend(self, _device: torch.device) -> EmulatedGroup:
        """Return the group itself, which carries out the calls on every device."""
        return self

    def _post(
        self,
        op: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        result: Any = None,
        **fields: Any,
    ) -> Work:
        result = list(outputs) if result is None else result
        inputs, outputs = (list(map(torch_internals.unwrapped, tensors)) for tensors in (inputs, outputs))
        tensors, reduction = [*inputs, *outputs], fields.get("reduction", "")
        _refuse_other_kinds(op, tensors)
        note_communication(tensors)
        _warn_in_backward(op, outputs)
        called = "monitored_barrier" if fields.get("tag") and op == "barrier" else op
        mark = self._client.observer.posting(called, tensors, self, reduction, fields.get("peer"))
        work = self._client.post(
            op,
            self._wire_name,
            self.ranks,
            _bytes_of(inputs[0]) if len(inputs) == 1 else b"".join(map(_bytes_of, inputs)),
            functools.partial(_fill, outputs, op == "recv"),
            result,
            dtype=_dtype_of(tensors, reduction),
            num_items=inputs[0].numel() if len(inputs) == 1 else sum(one.numel() for one in inputs),
            **fields,
        )
        work.timeout_s = self._timeout_s
        self._client.observer.posted(mark, work)
        return work

    def _global(self, rank: int) -> int:
        if not 0 <= (place := operator.index(rank)) < len(self.ranks):
            count = f"count from 0 to {len(self.ranks) - 1}"
            raise ValueError(f"rank {rank} is not in this group of {len(self.ranks)} ranks; {count}")
        return self.ranks[place]

    def _other(self, rank: int, does: str) -> int:
        """Return the global rank of a peer.

        Raises:
            ValueError: it is this rank itself, or not in the group.
        """
        if (peer := self._global(rank)) == self._client.rank:
            raise ValueError(
                f"rank {peer} {does} itself, which an emulated cluster does not do, as Gloo: copy the tensor"
            )
        return peer

    def _root(self, opts: Any, root: Any) -> int:
        return self._global(getattr(opts, "rootRank", opts) if root is None else root)

    # messages

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Send one tensor."""
        return self._post("send", tensors, [], peer=self._other(dst, "sends to"), tag=operator.index(tag))

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Receive one tensor."""
        work = self._post("recv", [], tensors, peer=self._other(src, "receives from"), tag=operator.index(tag))
        work.source_group = self.ranks
        return work

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        """Receive one tensor from whichever rank sent first in virtual time."""
        work = self._post("recv", [], tensors, peer=None, tag=operator.index(tag))
        work.source_group = self.ranks
        return work

    # collectives

    # torch's options may be given as they are, or only what they hold: a root, a reduction

    def allreduce(self, tensors: _Tensors, opts: Any = None, timeout: Any = None, *, op: Any = None) -> Work:
        """Reduce tensors over the group, in place."""
        reduction, several = _name_of(opts if op is None else op), _listed(tensors)
        if any(one.layout is torch.sparse_coo for one in several):
            return self._all_reduce_sparse(several, reduction)
        return self._post("all_reduce", several, several, reduction=reduction)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Reduce several tensors at once."""
        return self.allreduce(tensors, opts)

    def _all_reduce_sparse(self, tensors: Sequence[torch.Tensor], reduction: str) -> Work:
        """Sum one sparse tensor over the group, in place, by gathering all ranks' values, as Gloo does."""
        if reduction != "SUM" or len(tensors) > 1:
            raise ValueError(
                f"all_reduce got {len(tensors)} tensors, some of them sparse, for {reduction}: sparse tensors can "
                "only be summed, one in a call, as on Gloo; use to_dense() for the others"
            )
        (tensor,) = tensors
        mine = sparse.packed(tensor)
        note_communication([tensor.detach()._indices(), tensor.detach()._values()])
        mark = self._client.observer.posting("all_reduce", tensors, self, reduction, None)
        work = self._client.post(
            "all_gather",
            self._wire_name,
            self.ranks,
            mine,
            functools.partial(sparse.fill_with_sum, tensor),
            list(tensors),
            dtype="uint8",
            num_items=len(mine),
            splits=[len(mine)],  # the ranks' sizes may differ
        )
        work.timeout_s = self._timeout_s
        self._client.observer.posted(mark, work)
        return work

    def broadcast(self, tensors: _Tensors, opts: Any = 0, timeout: Any = None, *, root: Any = None) -> Work:
        """Give every rank the root's tensor."""
        several = _listed(tensors)
        return self._post("broadcast", several, several, peer=self._root(opts, root))

    def reduce(
        self, tensors: _Tensors, opts: Any = 0, op: Any = None, timeout: Any = None, *, root: Any = None
    ) -> Work:
        """Reduce to the root."""
        several, reduction = _listed(tensors), _name_of(opts if op is None and hasattr(opts, "reduceOp") else op)
        return self._post("reduce", several, several, peer=self._root(opts, root), reduction=reduction)

    def allgather(self, outputs: list[Any], inputs: _Tensors, opts: Any = None, timeout: Any = None) -> Work:
        """Gather all ranks' tensors on every rank; as on NCCL, their sizes may differ."""
        wholes, sent = _first_of(outputs), _listed(inputs)
        splits = [sent[0].numel()] if len({one.numel() for one in wholes}) > 1 else []
        return self._post("all_gather", sent, wholes, result=outputs, splits=splits)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gather all ranks' lists of tensors on every rank, as one list for each rank."""
        if any(len(of_rank) != len(inputs) for of_rank in outputs) or len(outputs) != self.size():
            raise ValueError(
                f"all_gather_coalesced got lists of {[len(of_rank) for of_rank in outputs]} tensors for its results; "
                f"it needs one list for each of {self.size()} ranks, each of {len(inputs)} tensors as in its input"
            )
        return self._post("all_gather", inputs, [one for of_rank in outputs for one in of_rank], result=outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Gather all ranks' tensors into one tensor."""
        return self._post("all_gather", [tensor], [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gather several tensors, one after the other, each into one output."""
        return _last_of(self.all_gather_single, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(
        self, outputs: _Tensors, inputs: list[Any], opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Work:
        """Reduce, and give every rank its part."""
        parts = _first_of(inputs)
        splits = [tensor.numel() for tensor in parts]
        name = _name_of(opts if op is None else op)
        return self._post("reduce_scatter", parts, _listed(outputs), splits=splits, reduction=name)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Reduce one tensor, and give every rank its part."""
        if tensor.numel() != output.numel() * self.size():
            wanted = f"it must have {self.size()} times as many as the output, {output.numel() * self.size()}"
            raise ValueError(f"reduce_scatter got an input of {tensor.numel()} items; {wanted}")
        splits = [output.numel()] * self.size()
        name = _name_of(opts)
        return self._post("reduce_scatter", [tensor], [output], splits=splits, reduction=name)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Reduce several tensors, one after the other, and give every rank its parts."""
        return _last_of(self.reduce_scatter_single, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(
        self, outputs: list[Any], inputs: _Tensors, opts: Any = 0, timeout: Any = None, *, root: Any = None
    ) -> Work:
        """Gather all ranks' tensors on the root."""
        return self._post("gather", _listed(inputs), _first_of(outputs), peer=self._root(opts, root))

    def scatter(
        self, outputs: _Tensors, inputs: list[Any], opts: Any = 0, timeout: Any = None, *, root: Any = None
    ) -> Work:
        """Give every rank one of the root's tensors."""
        mine = _first_of(inputs)
        splits = [tensor.numel() for tensor in mine]
        return self._post("scatter", mine, _listed(outputs), peer=self._root(opts, root), splits=splits)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Send one tensor to each rank, and receive one from each."""
        return self._post("all_to_all", inputs, outputs, splits=[tensor.numel() for tensor in inputs])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        """Exchange the parts of one tensor, split along its first dimension."""
        rows = _rows("input", tensor, input_splits, self.size())
        _rows("output", output, output_splits, self.size())
        per_row = tensor.numel() // max(1, tensor.shape[0])
        return self._post("all_to_all", [tensor], [output], splits=[operator.index(num) * per_row for num in rows])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Wait for all ranks of the group."""
        work = self._post("barrier", [], [])
        work.timeout_s = seconds(timeout or getattr(opts, "timeout", opts)) or self._timeout_s
        return work

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks of the group; the first one does so for at most `timeout` of virtual time if it is given.

        Raises:
            DistBackendError: the first rank waited in vain. It names the first rank that had not come, or all of them
                with `wait_all_ranks`; the others are referred to it.
        """
        limit_s = None if timeout is None or timeout in UNSET_TIMEOUTS else max(0.0, timeout.total_seconds())
        is_first = self.rank() == 0
        splits = [int(limit_s * 1e9)] if is_first and limit_s is not None else []
        work = self._post("barrier", [], [], tag=MONITORED, splits=splits)
        try:
            work.wait()
        except dist.DistBackendError as error:
            if not (is_first and work.failure):
                raise dist.DistBackendError(
                    f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors while waiting for "
                    "send/recv from rank 0. Please check rank 0 logs for faulty rank."
                    + ("" if work.failure else f"\n Original exception: \n{error}")
                ) from None
            raise dist.DistBackendError(self._not_passed(work.failure, limit_s, wait_all_ranks)) from None

    def _not_passed(self, failure: OperationFailed, limit_s: float | None, wait_all_ranks: bool) -> str:
        """Say who did not come to a monitored barrier, in torch's words, which number the ranks within the group."""
        if limit_s == 0 and not wait_all_ranks:
            return (
                "Rank 0 timed out in monitoredBarrier after 0 ms.\nNo ranks successfully processed in monitoredBarrier."
            )
        late = sorted(map(self.ranks.index, failure.ranks))
        who = f"Ranks {', '.join(map(str, late))}" if wait_all_ranks else f"Rank {late[0]}"
        limit_ms = constants.default_pg_timeout.total_seconds() * 1e3 if limit_s is None else limit_s * 1e3
        return f"[Rank 0]: {who} failed to pass monitoredBarrier in {limit_ms:.0f} ms"


def client() -> Client | None:
    """Return this rank's client; None outside an emulated cluster."""
    return _client


def join(
    sock: socket.socket,
    rank: int,
    world_size: int,
    store: Any,
    allow: Iterable[str] | None,
    compute: Compute,
    missing: Mapping[str, str],
    observer: Observer,
    local_world_size: int,
) -> Client:
    """Join a default process group on the emulated cluster, and return this rank's client."""
    client = Client(sock, rank, world_size, allow, meter_of(compute), observer, missing)
    make = _Groups(client, world_size).make
    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    gpus = Gpus(compute.gpu, local_world_size, rank % local_world_size)
    lead_here(BACKEND, client, gpus)
    tensors.put_on_cpu()
    torch_internals.refuse_native_groups(_not_emulated(client))
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size)
    threads.install(client)
    files.install(client)
    checkpoints.install(client)
    loader_workers.install(client)
    client.meter.start()
    return client


def lead_here(backend: str, client: StepRecorder, gpus: Gpus) -> None:
    """Make this process's groups, hooks, GPUs, streams and virtual time those of a client.

    Groups have the backend of this name.
    """
    global _client
    _client = client
    torch_internals.lead_every_group_to(backend)
    torch_internals.register_hooks_in_python()
    torch_internals.keep_works_of_forward_passes()
    dist.monitored_barrier = distributed_c10d.monitored_barrier = monitored_barrier  # torch's is Gloo's alone
    lead_collected_futures()
    streams.install(client)
    when_imported("torch.distributed.tensor", attention.shard_by_batch_and_heads)
    answers.answer(gpus, GpuMemory(gpus).answers(), streams.OF_A_GPU)


class _Groups:
    """The maker of this rank's groups; it counts how often the program has joined a default group."""

    def __init__(self, client: Client, world_size: int) -> None:
        self._client, self._world_size, self._num_worlds = client, world_size, 0

    def make(self, options: Any, _backend_options: Any) -> EmulatedGroup:
        """A group, as torch describes it; the default group has no list of ranks.

        Raises:
            ValueError: the program joins as a different rank, or with a different world size.
        """
        if not options.global_ranks_in_group:
            self._refuse_another_world(options.group_rank, options.group_size)
            self._num_worlds += 1
        # without a space, which would end the name of a mesh dimension
        wire_name = f"{options.group_id}/{self._num_worlds}" if self._num_worlds > 1 else ""
        ranks = options.global_ranks_in_group or range(self._world_size)
        return EmulatedGroup(self._client, options.group_id, ranks, wire_name, seconds(options.timeout))

    def _refuse_another_world(self, rank: int, world_size: int) -> None:
        if (rank, world_size) != (self._client.rank, self._world_size):
            raise ValueError(
                f"this is rank {self._client.rank} of {self._world_size} on its emulated cluster, and cannot join as "
                f"rank {rank} of {world_size}; for fewer ranks, make a group of them with dist.new_group(ranks)"
            )


def _not_emulated(client: Client) -> Callable[[str], Forbidden]:
    """Return a function that makes the error for a native group of torch, which would bypass the emulated cluster."""

    def error(name: str) -> Forbidden:
        client.note_refusal()
        if "Agent" in name:
            return Forbidden(
                "torch's rpc would bypass the emulated cluster, so nothing would be priced: use messages and "
                "collectives of torch.distributed, or run this without a cluster"
            )
        return Forbidden(
            f"{name} would bypass the emulated cluster, so nothing would be priced: make the group with "
            "dist.new_group(), which gives an emulated one whatever backend you name, or run this without a cluster"
        )

    return error


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Wait for all ranks of the group, as `EmulatedGroup.monitored_barrier` does; outside the group, only warn.

    Raises:
        TypeError: the timeout is neither a number of seconds nor a timedelta.
        DistBackendError: some ranks had not come in time.
    """
    if dist.get_rank(group) < 0:
        warnings.warn("monitored_barrier was called by a rank outside the group, which does nothing", stacklevel=2)
        return
    timeout = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"monitored_barrier takes a datetime.timedelta as its timeout, not {timeout!r}")
    member: Any = group or dist.group.WORLD
    member.monitored_barrier(timeout, wait_all_ranks)


def _rows(name: str, tensor: torch.Tensor, splits: Sequence[int], num_ranks: int) -> Sequence[int]:
    """Return how many rows of a tensor go to each rank, or come from it.

    Raises:
        ValueError: they do not add up to the tensor's.
    """
    num_rows = tensor.shape[0] if tensor.dim() else 0
    if splits and (len(splits) != num_ranks or sum(splits) != num_rows):
        raise ValueError(
            f"all_to_all_single got {name}_split_sizes={list(splits)} for a tensor of {num_rows} rows and {num_ranks} "
            f"ranks: give one number of rows for each rank, {num_rows} in all"
        )
    if not splits and num_rows % num_ranks:
        raise ValueError(
            f"all_to_all_single got an {name} of {num_rows} rows, which {num_ranks} ranks do not divide: give "
            f"{name}_split_sizes"
        )
    return splits or [num_rows // num_ranks] * num_ranks


def _warn_in_backward(op: str, outputs: Sequence[torch.Tensor]) -> None:
    """Warn if gradients flow back through these results, as torch does on Gloo: they lack the other ranks' part."""

    results = [one for one in outputs if torch.is_grad_enabled() and one.requires_grad and not one.is_leaf]
    if not results:
        return
    filename, number = line_of_program()

    def warn(_gradient: torch.Tensor) -> None:
        text = (
            f"{op} is not differentiable: backward takes it for the identity, so gradients lack the other ranks' part; "
            f"use torch.distributed.nn.functional.{op}, or communicate under torch.no_grad()"
        )
        warnings.warn_explicit(text, UserWarning, filename, number)

    for result in results:
        result.register_hook(warn)


def _listed(tensors: _Tensors) -> list[torch.Tensor]:
    """Return one tensor, or several, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _first_of(lists: list[Any]) -> list[torch.Tensor]:
    """Return the first of a list of lists of tensors, or the list itself if it is one of tensors."""
    return lists if not lists or isinstance(lists[0], torch.Tensor) else lists[0]


def _last_of(call: Callable[..., Work], outputs: Sequence[Any], inputs: Sequence[Any], opts: Any) -> Work:
    """Make several calls and return the work of the last, which stands for all: a group's calls end in order.

    Raises:
        ValueError: there are none, or more of one than of the other.
    """
    if len(outputs) != len(inputs) or not inputs:
        raise ValueError(
            f"{call.__name__} got {len(inputs)} inputs and {len(outputs)} outputs: give one output for each input"
        )
    *before, last = (call(*pair, opts) for pair in zip(outputs, inputs, strict=True))
    last.stands_for = before
    return last


def _name_of(opts: Any) -> str:
    """Return the name of a reduction, which torch's options may hold; a sum if there is none."""
    reduction = getattr(opts, "reduceOp", opts)
    known = (name for name in REDUCTIONS if reduction is None or reduction == getattr(dist.ReduceOp, name))
    name = next(known, None)
    if name is None:
        raise ValueError(f"the emulated cluster cannot reduce with {reduction}; it supports {', '.join(REDUCTIONS)}")
    return name


def _refuse_other_kinds(op: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse what is not a plain tensor with data.

    Raises:
        ValueError: a tensor is sparse, nested, quantized, on the meta device, or wraps others as a DTensor does.
    """
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            kind, cure = "sparse", "use to_dense(), or communicate its indices and its values; all_reduce can sum it"
        elif tensor.is_nested:
            kind, cure = "nested", "communicate its tensors, one by one"
        elif tensor.is_quantized:
            kind, cure = "quantized", "communicate int_repr(), or dequantize() first"
        elif tensor.is_meta:
            kind, cure = "meta", "it has no data; give it some, as in to_empty(device=...)"
        elif is_traceable_wrapper_subclass(tensor):
            kind, cure = type(tensor).__name__, "communicate what it holds, such as a DTensor's to_local()"
        else:
            continue
        raise ValueError(f"{op} got a {kind} tensor, which an emulated cluster does not send: {cure}")


def _dtype_of(tensors: Sequence[torch.Tensor], reduction: str) -> str:
    dtypes = dict.fromkeys([tensor.dtype for tensor in tensors])
    if len(dtypes) > 1:
        raise ValueError(f"one call has tensors of {' and '.join(map(str, dtypes))}; give tensors of one type")
    return _name_of_type(next(iter(dtypes)), reduction) if dtypes else ""


@functools.lru_cache(maxsize=256)
def _name_of_type(dtype: torch.dtype, reduction: str) -> str:
    if reduction == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(
            f"AVG needs a floating-point or complex type, not {dtype}: reduce with SUM and divide, or convert first"
        )
    if reduction and "float8" in str(dtype):
        raise ValueError(
            f"torch cannot reduce {dtype}: convert to a wider type such as bfloat16 first, or gather the tensors and "
            "add them yourself"
        )
    if reduction and dtype in _UNREDUCED:
        raise ValueError(f"torch cannot reduce {dtype}: convert to int32 or int64 first")
    if reduction in OF_BITS and (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"{reduction} is for integers, and these tensors are {dtype}")
    return str(dtype).removeprefix("torch.")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    if tensor.nbytes > _MOST_BYTES:
        raise ValueError(
            f"a tensor of {format_bytes(tensor.nbytes)} in one call: an emulated cluster sends real data, at most "
            f"{format_bytes(_MOST_BYTES)} a tensor; use less, or run this on paper, where tensors have no data"
        )
    whole = (tensor if tensor.is_cpu else tensor.cpu()).contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.nbytes)


def _fill(outputs: Sequence[torch.Tensor], may_be_less: bool, body: bytes) -> None:
    """Copy the bytes into the tensors, one after the other; without bytes, leave the tensors unchanged.

    Raises:
        ValueError: the sizes differ; with `may_be_less`, as for a message on Gloo, the bytes may be fewer.
    """
    if not body:
        return
    wanted = sum(output.nbytes for output in outputs)
    if len(body) > wanted or (len(body) < wanted and not may_be_less):
        raise ValueError(f"{len(body)} bytes came for tensors of {wanted} bytes; give them the size of what is sent")
    start = 0
    for output in outputs:
        part = body[start : start + output.nbytes] if len(outputs) > 1 else body
        if output.is_cpu and output.is_contiguous():
            ctypes.memmove(output.data_ptr(), part, min(output.nbytes, len(part)))
        elif part:
            data = torch.frombuffer(bytearray(part), dtype=output.dtype)
            with torch.no_grad():
                output.detach().copy_(data.view(output.shape))
        start += output.nbytes
