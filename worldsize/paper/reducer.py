"""A stand-in for DDP's reducer, which in C++ reads the data of tensors: the same buckets, in the same order.

DDP itself runs unmodified with this in place of `torch.distributed.Reducer`. As in C++, the first backward has one
bucket of all parameters, after which buckets are rebuilt in the order in which gradients were ready. A gradient is
divided by the number of ranks and copied into its bucket as soon as it is ready; a bucket is reduced once it and those
before it are full; at backward's end all are awaited and copied back. Not supported: `join`, `delay_all_reduce`, mixed
precision, sparse gradients.

Source: torch/csrc/distributed/c10d/reducer.cpp (torch 2.13).
"""

# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from worldsize.emulate.worker import torch_internals


@dataclass
class Bucket:
    """Parameters whose gradients are reduced together; passed to communication hooks in place of `dist.GradBucket`."""

    place: int
    is_of_last: bool
    variables: Sequence[int]  # indices of its parameters
    owners: Sequence[torch.Tensor]
    content: torch.Tensor
    views: Sequence[torch.Tensor]
    num_pending: int = 0
    future: Any = field(default=None, repr=False)

    def index(self) -> int:
        """Return the index of the bucket in the order of reduction."""
        return self.place

    def is_last(self) -> bool:
        """Whether this bucket is reduced last."""
        return self.is_of_last

    def buffer(self) -> torch.Tensor:
        """Return the gradients as one flat tensor."""
        return self.content

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the gradients with another flat tensor."""
        self.content = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients as views of the buffer."""
        return list(self.views)

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of the bucket."""
        return list(self.owners)


class Reducer:
    """The part of torch's reducer that DDP uses."""

    def __init__(self, parameters: Any, bucket_indices: Any, _limits: Any, group: Any, *options: Any) -> None:
        _sparse, cap_bytes, self._finds_unused, self._gradient_as_view, _names, *rest = options
        first_cap_bytes, own_limits = rest[0], rest[3] if len(rest) > 3 else []
        self._limits = own_limits or [first_cap_bytes, cap_bytes]
        self._parameters, self._group = list(parameters), group
        self._hook: Callable[[Any], Any] | None = None
        self._is_expecting = self._is_rebuilt = self._is_static = self._is_delayed = False
        self._ready_order: list[int] = []
        self._ready: set[int] = set()
        self._used = torch.zeros(len(self._parameters) if self._finds_unused else 0, dtype=torch.int32)
        self._next = 0
        self._buckets = self._make_buckets(bucket_indices)
        self._accumulators = [_accumulator(one) for one in self._parameters]
        weak = weakref.ref(self)  # hooks must not keep the reducer alive after DDP, as in C++
        self._handles = [node.register_hook(_taker(weak, place)) for place, node in enumerate(self._accumulators)]

    # called by DDP

    def prepare_for_forward(self) -> None:
        """Do nothing: there are no statistics."""

    def set_logger(self, _logger: Any) -> None:
        """Do nothing: there are no statistics."""

    def _set_forward_pass_work_handle(self, *_: Any) -> None:
        raise NotImplementedError("DDP.join is not supported on paper; give every rank the same number of batches")

    def _set_static_graph(self) -> None:
        self._is_static = self._is_delayed = True
        self._used = torch.zeros(len(self._parameters), dtype=torch.int32)

    @torch.no_grad()
    def _delay_all_reduce(self) -> None:
        """Reduce all gradients at the end of a static graph's first backward, during which none were reduced."""
        self._is_delayed = False
        for place in range(len(self._parameters)):
            self._fill(place)
        self._group.allreduce([self._used]).get_future()
        for bucket in self._buckets:
            self._reduce(bucket)
        self._is_expecting = False
        self._finish()

    def _set_mixed_precision_param_dtype(self, *_: Any) -> None:
        raise NotImplementedError("DDP's mixed_precision is not supported on paper; use torch.autocast, or FSDP2's")

    def _set_optimizer_in_backward(self) -> None:
        raise NotImplementedError("an optimizer in DDP's backward is not supported on paper; step after backward")

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _check_reducer_finalized(self) -> None:
        pass

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Expect the gradient of every parameter, except unused ones if DDP looks for them."""
        self._is_expecting, self._next = True, 0
        self._ready.clear()
        for bucket in self._buckets:
            bucket.num_pending, bucket.future = len(bucket.variables), None
        if self._finds_unused and not self._is_static:
            used = _reached(outputs)
            for place, node in enumerate(self._accumulators):
                if node not in used:
                    self._mark_ready(place)

    def _rebuild_buckets(self) -> bool:
        """Rebuild the buckets once, in the order of the first backward; return whether that was done."""
        is_due = self._is_static or not self._finds_unused
        if self._is_rebuilt or not is_due or len(self._ready_order) < len(self._parameters):
            return False
        ordered = [self._parameters[place] for place in self._ready_order]
        places, _ = dist._compute_bucket_assignment_by_size(ordered, self._limits, [], self._ready_order)
        self._agree(len(self._parameters) + 1)
        self._agree(len(places))
        self._buckets, self._places = [], {}  # before the new ones are made, as in C++
        self._buckets = self._make_buckets(places)
        self._is_rebuilt = True
        return True

    def _agree(self, num_items: int) -> None:
        """Adopt rank 0's order."""
        here, there = (torch.empty(num_items, dtype=torch.int32) for _ in range(2))
        there.copy_(here)
        _broadcast(self._group, there)
        here.copy_(there)

    # backward

    @torch.no_grad()
    def _take(self, place: int) -> None:
        """Handle a gradient that is ready."""
        if not self._is_expecting or self._is_delayed or place in self._ready:
            return
        if not self._is_rebuilt:
            self._ready_order.append(place)
        self._mark_ready(place)

    @torch.no_grad()
    def _mark_ready(self, place: int) -> None:
        self._ready.add(place)
        bucket = self._fill(place)
        bucket.num_pending -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].num_pending:
            self._reduce(self._buckets[self._next])
            self._next += 1
        if self._next == len(self._buckets):
            self._end()

    def _fill(self, place: int) -> Bucket:
        """Copy a gradient into its bucket."""
        bucket, inside = self._places[place]
        gradient, view = self._parameters[place].grad, bucket.views[inside]
        if gradient is None:
            view.zero_()
        elif gradient.untyped_storage()._cdata != view.untyped_storage()._cdata:
            if self._hook is None:
                torch.mul(gradient, 1 / self._group.size(), out=view)
            else:
                view.copy_(gradient)
            if self._gradient_as_view:
                self._parameters[place].grad = view
        elif self._hook is None:
            view.mul_(1 / self._group.size())
        return bucket

    def _reduce(self, bucket: Bucket) -> None:
        if self._hook is None:
            bucket.future = self._group.allreduce([bucket.content]).get_future()
        else:
            bucket.future = self._hook(bucket)

    def _end(self) -> None:
        if self._finds_unused and not self._is_static:
            self._group.allreduce([self._used]).get_future()
        self._is_expecting = False
        if torch_internals.backward_number() is None:
            self._finish()
        else:
            torch_internals.call_when_backward_ends(self._finish)

    @torch.no_grad()
    def _finish(self) -> None:
        for bucket in self._buckets:
            if self._hook is not None:
                bucket.content = _tensor_of(bucket.future.wait())
                bucket.views = _views(bucket.content, bucket.owners)
            for owner, view in zip(bucket.owners, bucket.views, strict=True):
                if owner.grad is not None and owner.grad.untyped_storage()._cdata != view.untyped_storage()._cdata:
                    owner.grad.copy_(view)

    def _make_buckets(self, places: Sequence[Sequence[int]]) -> list[Bucket]:
        made = []
        for number, variables in enumerate(places):
            owners = [self._parameters[place] for place in variables]
            content = torch.empty(sum(one.numel() for one in owners), dtype=owners[0].dtype, device=owners[0].device)
            is_last = number == len(places) - 1
            made.append(Bucket(number, is_last, variables, owners, content, _views(content, owners)))
        self._places = {place: (bucket, inside) for bucket in made for inside, place in enumerate(bucket.variables)}
        return made


class Logger:
    """A logger that discards statistics."""

    def __init__(self, _reducer: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_options: None


def install() -> None:
    """Let DDP in this process use this reducer, and broadcast and compare parameters without their data."""
    dist.Reducer, dist.Logger = Reducer, Logger
    dist._register_comm_hook = _register_hook
    dist._verify_params_across_processes = _verify
    dist._broadcast_coalesced = _broadcast_coalesced


def _taker(weak: Callable[[], Reducer | None], place: int) -> Callable[..., None]:
    def take(*_: Any) -> None:
        if reducer := weak():
            reducer._take(place)

    return take


def _register_hook(reducer: Reducer, state: Any, hook: Callable[[Any, Any], Any]) -> None:
    reducer._hook = lambda bucket: hook(state, bucket)


def _verify(group: Any, tensors: Sequence[torch.Tensor], _logger: Any = None) -> None:
    """Exchange what DDP compares at construction: the number of parameters, and rank 0's sizes and strides."""
    number = torch.empty(1, dtype=torch.int64)
    group.allgather([[torch.empty_like(number) for _ in range(group.size())]], [number]).wait()
    _broadcast(group, torch.empty(2 * sum(one.dim() for one in tensors), dtype=torch.int64))


@torch.no_grad()
def _broadcast_coalesced(group: Any, tensors: Sequence[torch.Tensor], buffer_bytes: int, src: int = 0) -> None:
    """Broadcast tensors in buckets of at most `buffer_bytes`."""
    places, _ = dist._compute_bucket_assignment_by_size(list(tensors), [buffer_bytes])
    for of_bucket in places:
        parts = [tensors[place] for place in of_bucket]
        flat = _flatten_dense_tensors(parts)
        _broadcast(group, flat, src)
        for part, view in zip(parts, _unflatten_dense_tensors(flat, parts), strict=True):
            part.copy_(view)


def _broadcast(group: Any, tensor: torch.Tensor, src: int = 0) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = src
    group.broadcast([tensor], options).wait()


def _views(flat: torch.Tensor, owners: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    views, start = [], 0
    for one in owners:
        views.append(flat.narrow(0, start, one.numel()).view(one.shape))
        start += one.numel()
    return views


def _tensor_of(value: Any) -> torch.Tensor:
    """Return the tensor in a hook's result: a tensor, or a list of one."""
    return value[0] if isinstance(value, list | tuple) else value


def _accumulator(parameter: torch.Tensor) -> Any:
    """Return the node of autograd's graph that accumulates a parameter's gradient."""
    with torch.enable_grad():
        node = parameter.expand_as(parameter).grad_fn
    assert node is not None
    return node.next_functions[0][0]


def _reached(outputs: Sequence[torch.Tensor]) -> set[Any]:
    """Return the nodes of autograd's graph on which these tensors depend."""
    seen: set[Any] = set()
    left = [one.grad_fn for one in outputs if one.grad_fn is not None]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions if before is not None]
    return seen
