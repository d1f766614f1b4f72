"""A rank's measurements of this machine: matmuls by shape, passes over memory, operators' overhead, links, files.

Each probe is timed in rounds of all probes, so that a busy moment meets each of them once. A rank's own work is timed
in CPU seconds, which other processes hardly affect, or with several threads in wall-clock seconds, like messages and
files.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from worldsize.emulate.worker.compute import is_priced
from worldsize.emulate.worker.torch_operators import operator_of

aten = torch.ops.aten
Call = Callable[[], Any]

SHAPES = tuple(  # rows, summed over, columns
    (rows, width, columns)
    for rows, width, columns in itertools.chain(
        itertools.product((16, 64, 256, 1024), (64, 256, 512), (64, 256, 512)),
        [(64, 1024, 1024), (256, 1024, 1024), (1024, 1024, 1024), (128, 1024, 4096)],
    )
)
NUM_ELEMENTS = (1 << 8, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
SEQUENCES = ((4, 4, 32, 32), (4, 4, 128, 32), (4, 4, 256, 64))  # batch, heads, length, size of a head
MESSAGE_BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 17, 1 << 19, 1 << 20, 1 << 22, 1 << 24)
FILE_BYTES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 25)
STEPS = ((16, 4, 10), (160, 96, 4), (320, 64, 2), (640, 160, 1))  # width, batch, steps in a round
_WIDTH = 256  # of the rows in passes over memory
_LEAST_ROUNDS = 2
_LEAST_S = 200e-6  # a measurement repeats shorter calls


def products() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the matmul of a linear layer and the two of its backward pass, in each shape."""
    for rows, width, columns in SHAPES:
        x, weight, bias = torch.randn(rows, width), torch.randn(columns, width), torch.randn(columns)
        gradient = torch.randn(rows, columns)
        yield aten.addmm.default, (bias, x, weight.t())
        yield aten.mm.default, (gradient, weight)
        yield aten.mm.default, (gradient.t(), x)
    for batch, heads, length, size in SEQUENCES:
        q, k = torch.randn(batch * heads, length, size), torch.randn(batch * heads, size, length)
        yield aten.bmm.default, (q, k)


def attentions() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield causal attention and its backward pass."""
    for shape in SEQUENCES:
        q, k, v, gradient = (torch.randn(shape) for _ in range(4))
        forward = aten._scaled_dot_product_flash_attention_for_cpu.default
        out, logsumexp = forward(q, k, v, 0.0, True)
        yield forward, (q, k, v, 0.0, True)
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        yield backward, (gradient, q, k, v, out, logsumexp, 0.0, True)


def passes() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the operators of training that pass over memory, on tensors of each size."""
    for number in NUM_ELEMENTS:
        rows = max(1, number // _WIDTH)
        x, y, z = (torch.rand(rows, number // rows) + 0.5 for _ in range(3))
        row, column, scalar = torch.rand(x.shape[1]), torch.rand(rows, 1), torch.tensor(0.5)
        targets = torch.randint(x.shape[1], (rows,))
        logs = torch.log_softmax(x, -1)
        _, mean, rstd = aten.native_layer_norm(x, [x.shape[1]], row, row, 1e-5)
        for unary in ("relu", "neg", "sqrt", "rsqrt", "exp", "tanh", "sigmoid", "silu", "gelu", "clone", "zeros_like"):
            at = column if unary == "rsqrt" else x
            yield getattr(aten, unary).default, (at,)
        yield aten.cos.default, (x,)
        yield aten.sin.default, (x,)
        for binary in ("add", "sub", "mul", "div"):
            yield getattr(aten, binary).Tensor, (x, y)
        yield aten.add_.Tensor, (x, y)
        yield aten.mul_.Tensor, (x, scalar)
        yield aten.copy_.default, (x, y)
        yield aten.pow.Tensor_Scalar, (x, 2)
        yield aten.mean.dim, (x, [-1], True)
        yield aten.sum.dim_IntList, (x, [0], True)
        yield aten.threshold_backward.default, (x, y, 0)
        yield aten.gelu_backward.default, (x, y)
        yield aten.silu_backward.default, (x, y)
        yield aten.sigmoid_backward.default, (x, y)
        yield aten.tanh_backward.default, (x, y)
        yield aten._softmax.default, (x, -1, False)
        yield aten._softmax_backward_data.default, (x, y, -1, torch.float32)
        yield aten._log_softmax.default, (x, -1, False)
        yield aten._log_softmax_backward_data.default, (x, logs, -1, torch.float32)
        yield aten.nll_loss_forward.default, (logs, targets, None, 1, -100)
        yield aten.nll_loss_backward.default, (scalar, logs, targets, None, 1, -100, torch.tensor(float(rows)))
        yield aten.native_layer_norm.default, (x, [x.shape[1]], row, row, 1e-5)
        yield aten.native_layer_norm_backward.default, (y, x, [x.shape[1]], mean, rstd, row, row, [True, True, True])
        yield aten.cat.default, ([x, y],)
        yield aten.embedding.default, (x, targets % rows)
        yield aten.embedding_dense_backward.default, (x, targets % rows, rows, -1, False)
        yield aten.lerp_.Scalar, (x, y, 0.1)
        yield aten.addcmul_.default, (x, y, z)
        yield aten.addcdiv_.default, (x, y, z)


def dtypes() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the same matmul in each dtype."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        yield aten.mm.default, (torch.ones(384, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype))


def work(budget_s: float) -> dict[str, list[dict[str, Any]]]:
    """Measure each operator's seconds, by kind of probe, with its name, its flops and the bytes that it moves."""
    rows: dict[str, list[dict[str, Any]]] = {}
    timed: list[tuple[dict[str, Any], Call]] = []
    kinds = {"products": products(), "attentions": attentions(), "passes": passes(), "dtypes": dtypes()}
    for kind, calls in kinds.items():
        rows[kind] = []
        for operator, args in calls:
            priced = operator_of(operator, args, {}, operator(*args))
            name = priced.dtype if kind == "dtypes" else operator.overloadpacket.__name__
            row = {"name": name, "flops": priced.flops, "size_bytes": priced.size_bytes}
            rows[kind].append(row)
            timed.append((row, functools.partial(operator, *args)))
    times = rounds([call for _, call in timed], budget_s)
    for (row, _), one in zip(timed, times, strict=True):
        row["times_s"] = one
    return rows


def rounds(calls: list[Call], budget_s: float) -> list[list[float]]:
    """Time each call once per round for this long; a short call as the mean of several."""
    repeats = []
    for call in calls:
        call()
        start_s = time.perf_counter()
        call()
        repeats.append(max(1, int(_LEAST_S / max(1e-7, time.perf_counter() - start_s))))
    clock_s = _clock()
    times: list[list[float]] = [[] for _ in calls]
    for _ in _until(budget_s):
        for index, (call, number) in enumerate(zip(calls, repeats, strict=True)):
            if number > 1:
                call()  # finds its code and tensors in no cache
            start_s = clock_s()
            for _ in range(number):
                call()
            times[index].append((clock_s() - start_s) / number)
    return times


def _clock() -> Callable[[], float]:
    """Return the CPU clock, which excludes other processes' time; with several threads it would be their sum."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _until(budget_s: float, is_alone: bool = False) -> Iterator[None]:
    """Yield rounds for so many seconds: at least two, and equally many on every rank unless this one is alone."""
    end_s = time.perf_counter() + budget_s
    for number in itertools.count():
        is_over = torch.tensor(float(number >= _LEAST_ROUNDS and time.perf_counter() > end_s))
        if not is_alone and dist.get_world_size() > 1:
            dist.all_reduce(is_over)  # ranks stay side by side, and stop together
        if is_over:
            return
        yield


def phases(budget_s: float) -> list[dict[str, Any]]:
    """Measure each phase of training steps of several widths, with its operators."""
    steps = [_TrainingStep(*sizes) for sizes in STEPS]
    rows: list[dict[str, Any]] = []
    for step in steps:
        for name, phase in step.phases.items():
            rows.append({"name": name, "width": step.width, "operators": operators_of(phase), "times_s": []})
    clock_s = _clock()
    for _ in _until(budget_s):
        for index, step in enumerate(steps):
            for row in step.num_steps * rows[index * len(step.phases) :][: len(step.phases)]:
                start_s = clock_s()
                step.phases[row["name"]]()
                row["times_s"].append(clock_s() - start_s)
    return rows


class _TrainingStep:
    """A training step of a small network in its three phases."""

    def __init__(self, width: int, batch: int, num_steps: int) -> None:
        self.width, self.num_steps = width, num_steps
        layers = (layer for _ in range(3) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()))
        self._model, self._x = nn.Sequential(*layers), torch.randn(batch, width)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._losses: list[Tensor] = []
        self.phases = {"forward": self._forward, "backward": self._backward, "update": self._update}
        for phase in self.phases.values():
            phase()  # the first update makes the optimizer's state

    def _forward(self) -> None:
        self._losses[:] = [self._model(self._x).square().mean()]

    def _backward(self) -> None:
        self._losses[0].backward()

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def operators_of(call: Call) -> list[list[Any]]:
    """Return the name, flops and bytes of each operator in a call."""
    with _Operators() as seen:
        call()
    return seen.found


class _Operators(TorchDispatchMode):
    """The operators of a context: name, flops and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if is_priced(func):
            operator = operator_of(func, args, kwargs or {}, out)
            self.found.append([func.overloadpacket.__name__, operator.flops, operator.size_bytes])
        return out


def links(budget_s: float) -> list[dict[str, Any]]:
    """Measure the wall-clock seconds of an all-reduce among all ranks, by its size."""
    probes = [torch.ones(size // 4) for size in MESSAGE_BYTES]
    times: list[list[float]] = [[] for _ in probes]
    for _ in _until(budget_s):
        for index, buffer in enumerate(probes):
            buffer.fill_(1.0)
            for _ in range(max(1, min(8, (1 << 20) // buffer.nbytes))):
                dist.barrier()
                start_s = time.perf_counter()
                dist.all_reduce(buffer)
                times[index].append(time.perf_counter() - start_s)
    return [{"size_bytes": size, "times_s": times_s} for size, times_s in zip(MESSAGE_BYTES, times, strict=True)]


def files(folder: str | None, budget_s: float) -> dict[str, list[dict[str, Any]]]:
    """Measure the wall-clock seconds of `torch.save` to the disk and of `torch.load`, by the tensor's size."""
    found: dict[str, list[dict[str, Any]]] = {"write": [], "read": []}
    for rows in found.values():
        rows += [{"size_bytes": size, "times_s": []} for size in FILE_BYTES]
    with tempfile.TemporaryDirectory(dir=folder, prefix="calibrate-") as scratch:
        path = Path(scratch, "file")
        for _, (index, size) in (
            (one, probe) for one in _until(budget_s, is_alone=True) for probe in enumerate(FILE_BYTES)
        ):
            content = torch.rand(size // 4)
            start_s = time.perf_counter()
            with path.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
                found["write"][index]["times_s"].append(time.perf_counter() - start_s)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # or memory would be read
            start_s = time.perf_counter()
            torch.load(path, weights_only=True)
            found["read"][index]["times_s"].append(time.perf_counter() - start_s)
            path.unlink()
    return found


def measure(num_threads: int, folder: str | None, budget_s: float) -> dict[str, list[dict[str, Any]]]:
    """Take all measurements of one rank, next to the other ranks; only rank 0 measures files."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    rows = work(0.5 * budget_s) | {"phases": phases(0.15 * budget_s)}
    rows["links"] = links(0.2 * budget_s) if dist.get_world_size() > 1 else []
    if dist.get_rank():
        dist.barrier()
        return rows
    rows |= files(folder, 0.15 * budget_s)
    if dist.get_world_size() > 1:
        dist.barrier()
    return rows
