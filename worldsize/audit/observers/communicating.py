"""Observer of calls of torch.distributed: what was sent, from which line, and whether anybody waited for it."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.distributed import distributed_c10d

from worldsize.audit.names import Names
from worldsize.audit.notes import Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.observers.training import TrainingObserver
from worldsize.memory.strides import has_gaps
from worldsize.source import Line, line_of

_READS = ("isend", "send", "all_gather", "all_gather_into_tensor", "all_gather_single", "gather")
_READS += ("all_to_all", "all_to_all_single")  # transfers that only read what they are given to send
_MOST_PENDING = 1000


class PendingTransfer:
    """A transfer that has been started and not waited for, with the memory that it reads or writes."""

    def __init__(self, op: str, line: Line | None, tensors: list[torch.Tensor], num_sent: int, work: Any) -> None:
        self.op, self.line = op, line
        self.held = tensors, work  # so that neither the memory nor the id of the work becomes somebody else's
        self.is_read_only = op in _READS
        self.extents = [(index, extent) for index, tensor in enumerate(tensors) if (extent := extent_of(tensor))]
        self.num_sent = num_sent

    def meets(self, extent: tuple[int, int], is_write: bool) -> bool:
        """Whether a read or write of this memory meets the transfer: reads of what it only reads do no harm."""
        return any(
            start < extent[1] and extent[0] < stop and (is_write or not self.is_read_only or index >= self.num_sent)
            for index, (start, stop) in self.extents
        )


@dataclass(frozen=True, eq=False)
class GatheredCopy:
    """What a gather wrote back of this rank's own tensor, which has a gradient where the copy has none."""

    op: str
    line: Line | None
    copy: weakref.ref[torch.Tensor]


class CallsObserver:
    """A listener of the tracer of calls."""

    def __init__(self, notebook: Notebook, names: Names, training: TrainingObserver) -> None:
        self._notebook, self._names, self._training = notebook, names, training
        self.pending: dict[int, PendingTransfer] = {}  # id of the work -> transfer
        self.copies: list[GatheredCopy] = []  # of this rank's own tensors with gradient functions
        self._kinds: set[type] = set()
        self._stack = contextlib.ExitStack()

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        self._stack = stack
        self._watch_questions(distributed_c10d.Work)

    def _watch_questions(self, kind: type) -> None:
        """Hear of the questions after the end of works of this class, which may have methods of its own for them."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            for name in ("get_future", "is_completed"):
                if name in vars(kind):
                    replace(self._stack, kind, name, self._wrap_question)

    def _wrap_question(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(work: Any, *args: Any) -> Any:
            self.waited(work)
            return ask(work, *args)

        return asked

    def shard_of(self, tensor: Any) -> str:
        """The name of a weight or gradient whose local shard a tensor is; an empty text if it is none."""
        return self._names.name_of_shard(tensor) if isinstance(tensor, torch.Tensor) else ""

    def before(self, op: str, arguments: Mapping[str, Any], payload: Any) -> None:
        """Note a call that is about to be made."""
        self._training.forget()
        is_torchs = _is_torchs(sys._getframe(1))
        with quietly():
            tensor = payload[0] if isinstance(payload, list | tuple) and payload else payload
            is_tensor = isinstance(tensor, torch.Tensor)
            about: dict[str, Any] = {"op": op, "group": _group(arguments.get("group"))}
            line = line_of(sys._getframe(1))
            about["is_torchs"] = is_torchs
            if "op" in arguments:
                about["reduction"] = str(arguments["op"]).rpartition(".")[2]
            if is_tensor and self._training.is_due and not is_torchs:
                about["name"] = self._names.find(tensor)
                about["shape"] = list(tensor.shape)
                if about["name"].startswith("gradient of "):
                    self._training.send(about["name"].removeprefix("gradient of "))
                sent = [tensor, *(arguments.get("scatter_list") or ())]
                about["has_gaps"] = any(map(has_gaps, sent))
                if not about["name"]:
                    about["is_zero"] = not bool(tensor.any())
                    about["value"] = float(tensor) if tensor.numel() == 1 and not tensor.is_complex() else None
                if tensor.grad_fn is not None and torch.is_grad_enabled():
                    self._training.hide(tensor.grad_fn, op, line)
                elif op == "all_reduce" and (node := _function_around()) is not None:
                    self._training.sum_inside(node, line)
            self._notebook.say("call", line, **about)

    def after(self, op: str, arguments: Mapping[str, Any], payload: Any, work: Any) -> None:
        """Note that a call has returned, with its work if it goes on."""
        with quietly():
            self._note_copy(op, arguments, payload)
        if work is None or _is_torchs(sys._getframe(1)):
            return
        with quietly():
            tensors = payload if isinstance(payload, list | tuple) else [payload]
            num_sent = sum(isinstance(one, torch.Tensor) and one.layout == torch.strided for one in tensors)
            for name in ("output_tensor", "output", "tensor_list", "output_tensor_list", "gather_list"):
                made = arguments.get(name)
                tensors = [*tensors, *(made if isinstance(made, list | tuple) else [made])]
            known = [one for one in tensors if isinstance(one, torch.Tensor) and one.layout == torch.strided]
            self._watch_questions(type(work))
            if len(self.pending) < _MOST_PENDING:
                self.pending[id(work)] = PendingTransfer(op, line_of(sys._getframe(1)), known, num_sent, work)

    def _note_copy(self, op: str, arguments: Mapping[str, Any], tensor: Any) -> None:
        slots = arguments.get("tensor_list")
        if op != "all_gather" or not isinstance(tensor, torch.Tensor) or not isinstance(slots, list):
            return
        if tensor.grad_fn is not None and torch.is_grad_enabled() and not _is_torchs(sys._getframe(2)):
            group = arguments.get("group")
            own = torch.distributed.get_rank(group)
            if 0 <= own < len(slots):
                self.copies = [one for one in self.copies if one.copy() is not None]
                self.copies.append(GatheredCopy(op, line_of(sys._getframe(2)), weakref.ref(slots[own])))

    def waited(self, work: Any) -> None:
        """Note that a work is waited for, or asked for its end."""
        self._training.forget()
        self.pending.pop(id(work), None)

    def finish(self) -> None:
        """Write which works nobody waited for."""
        for transfer in self.pending.values():
            self._notebook.say("not waited for", transfer.line, op=transfer.op)


def extent_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The first and one past the last byte of a tensor's elements in this process; None if it has none."""
    try:
        if not tensor.numel():
            return None
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        return start, start + (last + 1) * tensor.element_size()
    except (RuntimeError, NotImplementedError):
        return None


def _is_torchs(frame: FrameType | None) -> bool:
    """Whether torch itself makes a call, other than for `torch.distributed.nn.functional`."""
    while frame is not None and frame.f_code.co_name == "noted":  # the tracer's
        frame = frame.f_back
    name = frame.f_code.co_filename if frame else ""
    return "/torch/" in name and "/torch/distributed/nn/" not in name


def _group(group: Any) -> list[int] | None:
    """The ranks of a group; None for all."""
    if group is None:
        return None
    with contextlib.suppress(Exception):
        return torch.distributed.get_process_group_ranks(group)
    return list(getattr(group, "ranks", None) or []) or None


def _function_around() -> Any:
    """The node of the function of autograd's whose forward pass is running; None if none is."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward":
            first = frame.f_code.co_varnames[:1]
            node = frame.f_locals.get(first[0]) if first else None
            if isinstance(node, torch.autograd.function.FunctionCtx):
                return node
        frame = frame.f_back
    return None
