"""Gloo on real sockets for a run that allows only some operations: every group refuses the others.

It holds a program to the allowed operations, whichever group, hook or function of torch they are called through. It
does not stop code that opens its own sockets.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from worldsize.emulate.protocol.operations import Forbidden, refusal
from worldsize.emulate.worker import torch_internals

# each method of a group that torch's functions and torch's C++ end up calling, and its operation
_OPERATIONS = {
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "all_to_all_single": "all_to_all",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "gather",
    "monitored_barrier": "barrier",
    "recv": "recv",
    "recv_anysource": "recv",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "scatter": "scatter",
    "send": "send",
}


def install(allow: Collection[str]) -> None:
    """Restrict every process group that this process will join to these operations."""
    allowed = frozenset(allow)
    make_gloo = torch_internals.refuse_native_groups(lambda name: Forbidden(_not_gloo(name, allowed)))

    class AllowedGloo(_Gloo):
        def __init__(
            self, store: Any, rank: int, size: int, timeout: Any = distributed_c10d.default_pg_timeout
        ) -> None:
            super().__init__(store, rank, size, make_gloo(store, rank, size, timeout), allowed)

    # from here on torch's `init_process_group` and `new_group` use it as Gloo
    dist.ProcessGroupGloo = distributed_c10d.ProcessGroupGloo = AllowedGloo  # type: ignore[misc]


class _Gloo(dist.ProcessGroup):
    """A wrapper of one of torch's groups that passes on only the allowed calls."""

    def __init__(self, store: Any, rank: int, size: int, backend: Any, allowed: frozenset[str]) -> None:
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        kind = dist.ProcessGroup.BackendType.GLOO
        native = dist.ProcessGroup(store, rank, size)
        native._set_default_backend(kind)
        native._register_backend(torch.device("cpu"), kind, backend)
        self.options = SimpleNamespace()  # torch sets the group's name and ranks here
        self.describe = native._set_group_desc, native._set_group_name, native._set_sequence_number_for_group

        def carry_out(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if (operation := _OPERATIONS[method]) not in allowed:
                raise Forbidden(refusal(operation, allowed))
            return getattr(native, method)(*args, **kwargs)

        self.carry_out = carry_out

    @property
    def group_name(self) -> str:
        """Torch's name for the group."""
        return self.options.group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _set_group_desc(self, desc: str) -> None:
        self.describe[0](desc)

    def _set_group_name(self, name: Any) -> None:
        self.describe[1](name)

    def _set_sequence_number_for_group(self) -> None:
        self.describe[2]()

    def getBackendName(self) -> str:
        """Return the backend's name for messages; with "gloo", torch's C++ would look for a backend behind it."""
        return "gloo for some operations"


def _method(name: str) -> Callable[..., Any]:
    def call(self: _Gloo, *args: Any, **kwargs: Any) -> Any:
        """Carry out the operation, or refuse it."""
        return self.carry_out(name, args, kwargs)

    return call


for _name in _OPERATIONS:
    setattr(_Gloo, _name, _method(_name))


def _not_gloo(name: str, allowed: Collection[str]) -> str:
    return f"{name} is not allowed here: use groups from dist.new_group(), and only {', '.join(sorted(allowed))}"
