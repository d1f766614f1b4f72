"""The log of torch's operators on fake tensors, and the answers to a program that reads data."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass_type,
)

from worldsize.emulate.worker import torch_internals
from worldsize.emulate.worker.compute import Meter, is_priced
from worldsize.emulate.worker.torch_operators import has_formula, is_custom, operator_of
from worldsize.memory.meter import tensors_in
from worldsize.paper.no_data import NoData, refusal
from worldsize.paper.record import BACKWARD, FORWARD, OTHER, RECOMPUTE, UPDATE, OperatorCall

_FUNCTIONAL = "_c10d_functional"
_CPU = torch.device("cpu")
_DRAWN = ("randint", "randperm")  # random integers, with which a program chooses its samples
_MOST_DRAWN = 1 << 16
_MASKED_WRITES = ("index_put", "index_put_", "_index_put_impl_")


class UnreadNumber(float):
    """The nan that a look at one number gets. It may be printed, kept and computed with, and decides nothing."""

    def __new__(cls, *_: object) -> UnreadNumber:
        return super().__new__(cls, math.nan)

    def _refuse(self, *_: object) -> NoReturn:
        raise NoData(
            "on paper .item() returns nan, on which nothing may depend: decide using what is known without data, "
            "or run this on an emulated cluster"
        )

    def _unread(self, *_: object) -> UnreadNumber:
        return self

    def __round__(self, num_digits: Any = None) -> Any:
        return self._refuse() if num_digits is None else self

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = _refuse  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unread  # type: ignore[assignment]
    __neg__ = __abs__ = __pow__ = __rpow__ = _unread  # type: ignore[assignment]
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unread  # type: ignore[assignment]
    __divmod__ = __rdivmod__ = __trunc__ = __floor__ = __ceil__ = _refuse  # type: ignore[assignment]
    __hash__ = float.__hash__


def answer_unread() -> None:
    """Have `.item()` answer what is not known by an `UnreadNumber`, and let a scaler of losses step.

    It steps as with finite gradients.
    """
    item = torch.Tensor.item

    @functools.wraps(item)
    def call(tensor: torch.Tensor) -> Any:
        value = item(tensor)
        return UnreadNumber() if isinstance(value, float) and math.isnan(value) else value

    torch.Tensor.item = call  # type: ignore[method-assign]
    torch.amp.GradScaler._maybe_opt_step = _step  # type: ignore[method-assign]


def _step(_scaler: Any, optimizer: Any, _state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


class OperatorLog(Meter, TorchDispatchMode):
    """The operators since the last call of `take`, counted by their work and phase of training.

    The collectives of `torch.ops._c10d_functional`, which fake tensors would answer themselves, go to `communicate`.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        TorchDispatchMode.__init__(self)
        self.works: dict[OperatorCall, int] = {}  # and the place of each
        self.communicate: Callable[[Any, Any, Any], Any] = lambda func, args, kwargs: func(*args, **kwargs)
        self.is_updating = False
        self.num_operators = 0
        self.without_flops: Counter[str] = Counter()  # calls of custom operators without a formula for flops
        self.phase = OTHER  # of the operators logged since the last `take`
        self._flush = flush
        self._batch: Counter[int] = Counter()

    def start(self) -> None:
        """Begin to log in this thread."""
        self.__enter__()

    def take(self) -> Counter[int]:
        """Return how often each of `works`, by index, has run since the last call."""
        batch, self._batch = self._batch, Counter()
        return batch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the wrapper's operations on this rank's inner tensors come through here next
        kwargs = kwargs or {}
        if (device := kwargs.get("device")) is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": _CPU}  # a fake tensor of a GPU would need torch's own CUDA in backward
        if func.namespace == _FUNCTIONAL:
            return self.communicate(func, args, kwargs)
        if func.overloadpacket.__name__ in _MASKED_WRITES and _is_masked(args[1]):
            out = args[0] if func._schema.is_mutable else torch.empty_like(args[0])  # no size depends on the mask
        else:
            try:
                out = func(*args, **kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException):
                if not (num_counts := _num_counts(func, args, kwargs)):
                    return _answer(func, args)
                out = args[0].new_empty(num_counts, dtype=torch.int64)
        if is_priced(func):
            self._log(func, args, kwargs, out)
        if func.overloadpacket.__name__ in _DRAWN:
            _know_values(func, args, kwargs, out)
        return out

    def _log(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        phase = self._phase(args)
        if phase != self.phase:
            self._flush()
            self.phase = phase
        work = OperatorCall(func.overloadpacket.__name__, phase, operator_of(func, args, kwargs, out))
        self._batch[self.works.setdefault(work, len(self.works))] += 1
        self.num_operators += 1
        if is_custom(func) and not has_formula(func):
            self.without_flops[func.name().partition(".")[0]] += 1

    def _phase(self, args: Any) -> str:
        if self.is_updating:
            return UPDATE
        is_recorded = torch.is_grad_enabled()
        if torch_internals.backward_number() is not None:
            return RECOMPUTE if is_recorded else BACKWARD
        return FORWARD if is_recorded and any(one.requires_grad for one in tensors_in(args)) else OTHER


def _know_values(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Draw a fake tensor's integers for real, so that the program can read each."""
    if out.numel() <= _MOST_DRAWN:
        with _disable_current_modes():
            out.constant = func(*args, **kwargs)
        out.fake_mode.fake_tensor_converter.add_constant_storage_mapping(out)


def _num_counts(func: Any, args: Any, kwargs: Any) -> int:
    """Return the `minlength` of a call of `torch.bincount`, taken as the size of its result; otherwise 0."""
    if func.overloadpacket.__name__ != "bincount":
        return 0
    return kwargs.get("minlength", args[2] if len(args) > 2 else 0)


def _is_masked(indices: Any) -> bool:
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _answer(func: Any, args: Any) -> float:
    """Answer a program that reads data: NaN for one floating-point number.

    Raises:
        NoData: it reads anything else.
    """
    name, looked_at = func.overloadpacket.__name__, args[0]
    if name == "_local_scalar_dense" and looked_at.dtype.is_floating_point:
        return math.nan
    is_value = name in ("_local_scalar_dense", "allclose", "equal", "is_nonzero")
    name = "item" if name == "_local_scalar_dense" else name
    what = "the value" if is_value else "the number of results"
    raise refusal(
        f"on paper tensors have shapes and no data, and {what} of {name.strip('_')} on {_described(looked_at)} depends "
        "on data. Only .item() of one floating-point number is answered, with nan. Decide a branch, a loop or a size "
        "using what is known without data, declare numbers with ws.declared(tensor, on_paper=[...]), or run this on an "
        "emulated cluster"
    )


def _described(tensor: Any) -> str:
    return f"a tensor of {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
