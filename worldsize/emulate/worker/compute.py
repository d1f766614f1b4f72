"""The cost of a rank's own work in virtual time: operations priced on the cluster's GPU, or this machine's clock."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from worldsize.emulate.protocol.messages import Compute
from worldsize.emulate.protocol.record import FLOPS, MEASURED
from worldsize.emulate.worker.torch_operators import is_custom, operator_of
from worldsize.hardware import Gpu
from worldsize.operators import time_s

_PRICED = ("aten", "fsdp")  # "fsdp" has FSDP2's copies into and out of its communication buffers
_MOVE_NOTHING = frozenset(
    {"_unsafe_view", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)


class Meter:
    """A meter for which work costs nothing; a meter that sees each operation calls `before_work` before it."""

    before_work: Callable[[], None] = staticmethod(lambda: None)

    def start(self) -> None:
        """Begin to count in this thread."""

    def take_s(self) -> float:
        """The virtual seconds since the last call."""
        return 0.0

    def for_thread(self) -> Meter:
        """Return the meter for a different thread: one that counts nothing, if this one sees all threads' work."""
        return Meter()


class MeasuredMeter(Meter):
    """A meter of this process's CPU time, multiplied by `scale`."""

    def __init__(self, scale: float) -> None:
        self._scale, self._taken_s = scale, 0.0

    def start(self) -> None:
        """Begin to count after joining the group, which is not the rank's own work."""
        self._taken_s = time.process_time()

    def take_s(self) -> float:
        """The virtual seconds since the last call."""
        before_s, self._taken_s = self._taken_s, time.process_time()
        return (self._taken_s - before_s) * self._scale


class FlopsMeter(Meter, TorchDispatchMode):
    """A meter of torch's operations, each priced on a GPU using `worldsize.operators`.

    Operations that move no data (views) and those of torch.distributed are free. For tensors that wrap others, such as
    DTensors, the operations on this rank's inner tensors are counted.
    """

    def __init__(self, gpu: Gpu) -> None:
        TorchDispatchMode.__init__(self)
        self._gpu, self._total_s = gpu, 0.0

    def start(self) -> None:
        """Begin to count in this thread."""
        self.__enter__()

    def take_s(self) -> float:
        """The virtual seconds since the last call."""
        total_s, self._total_s = self._total_s, 0.0
        return total_s

    def for_thread(self) -> Meter:
        """Return the meter for a different thread, because torch shows each thread's mode only its own operations."""
        meter = FlopsMeter(self._gpu)
        meter.before_work = self.before_work
        return meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the wrapper's operations on this rank's inner tensors come through here next
        is_work = is_priced(func)
        if is_work:
            self.before_work()
        out = func(*args, **(kwargs or {}))
        # a DTensor tries new operations on the full shape
        is_trial = any(issubclass(kind, FakeTensor) for kind in types)
        if is_work and not is_trial:
            self._total_s += time_s(operator_of(func, args, kwargs or {}, out), self._gpu, func.overloadpacket.__name__)
        return out


@functools.cache
def is_priced(func: Any) -> bool:
    """Whether an operator computes or moves data on the GPU."""
    is_work = func.namespace in _PRICED or is_custom(func)
    return is_work and not func.is_view and func.overloadpacket.__name__ not in _MOVE_NOTHING


def meter_of(compute: Compute) -> Meter:
    """Make the meter of a rank whose work is priced this way."""
    if compute.kind == FLOPS:
        return FlopsMeter(compute.gpu)
    return MeasuredMeter(compute.scale) if compute.kind == MEASURED else Meter()
