"""Checks of Stanford CS336's assignment 2, for readers without its grader: what its adapters send, and what they hold.

The assignment's own tests compare weights. These run the same adapters, unchanged, on four emulated GPUs, and also look
at when gradients leave, at the bytes of a step, and at the parameters and optimizer states that a rank keeps.

Source: adapters and handout of stanford-cs336/assignment2-systems, releases of spring 2025 and 2026.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from worldsize import emulate
from worldsize.check import CheckFailed
from worldsize.event import COMMUNICATION, Event
from worldsize.launch import Run, RunError, run, span
from worldsize.units import format_bytes, format_time_s

__all__ = ["AdapterResult", "check"]

NUM_RANKS, STEPS, ROWS, RATE = 4, 3, 8, 0.1
WIDTH, NUM_LAYERS, LAYER_S = 480, 4, 20e-6  # of the timed model: layers of 0.92 MB, and seconds of one's forward
BUCKET_MB = 2.0  # two layers, whether a MB is 10^6 or 2^20 bytes
ADAM = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}


@dataclass(frozen=True)
class AdapterResult:
    """What became of one check: its adapter, what that promises, and why it fails; `problem` is empty if it passes.

    If `is_written` is false, the adapter raises NotImplementedError.
    """

    adapter: str
    promise: str
    problem: str = ""
    is_written: bool = True

    def __str__(self) -> str:
        outcome = "passed" if not self.problem else "FAILED" if self.is_written else "not written"
        return f"{outcome:12}{self.adapter}: {self.promise}" + (f"\n            {self.problem}" if self.problem else "")


class TiedModel(nn.Module):
    """A model with a weight that is used twice, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.fixed = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(rows))))
        return self.last(self.fixed(hidden))


class VirtualWork(torch.autograd.Function):
    """An identity that takes virtual time, twice as much backward as forward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        emulate.spend(LAYER_S)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        with span("backward", kind="backward"):
            emulate.spend(2 * LAYER_S)
        return gradient


class TimedModel(nn.Module):
    """Equal layers whose computation takes virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = VirtualWork.apply(layer(rows))  # type: ignore[assignment]
        return rows


class Scale(nn.Module):
    """One factor for each feature, as in a norm: the assignment leaves it whole on each rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.weight * rows).to(rows.dtype)


class TokenModel(nn.Module):
    """An embedding and linear layers, CS336's own where its package can be imported, else torch's; and a scale."""

    def __init__(self) -> None:
        super().__init__()
        linear, embedding = _layers()
        self.embedding = embedding(64, 32)
        self.hidden = linear(32, 64)
        self.scale = Scale(64)
        self.output = linear(64, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.scale(self.hidden(self.embedding(ids)))))


def _layers() -> tuple[Callable[[int, int], nn.Module], Callable[[int, int], nn.Module]]:
    try:
        model = importlib.import_module("cs336_basics.model")
    except ImportError:
        return functools.partial(nn.Linear, bias=False), nn.Embedding
    return model.Linear, model.Embedding


def check(adapters: Path) -> Iterator[AdapterResult]:
    """Run the checks of the adapters in this file, one after the other.

    Raises:
        ValueError: there is no such file, it cannot be imported, or it has none of the adapters.
    """
    if not adapters.is_file():
        raise ValueError(f"there is no file {adapters}; give the assignment's adapters, such as tests/adapters.py")
    path = str(adapters.resolve())
    try:
        module = _load(path)
    except Exception as error:
        raise ValueError(
            f"{adapters} cannot be imported: {type(error).__name__}: {error}. "
            "If only other adapters need that import, such as triton's, move it into their functions."
        ) from error
    chosen = [one for one in CHECKS if hasattr(module, one.adapter)]
    if not chosen:
        raise ValueError(f"{adapters} has no {', '.join(dict.fromkeys(one.adapter for one in CHECKS))}")
    for one in chosen:
        yield _result(one, path)


def _result(one: AdapterCheck, path: str) -> AdapterResult:
    try:
        one.function(path, one.adapter)
    except CheckFailed as failed:
        return AdapterResult(one.adapter, one.promise, str(failed))
    except RunError as error:
        # torch raises it, too, with a message
        if error.failures and all(no.kind == "NotImplementedError" and not no.message for no in error.failures):
            problem = "It, or its on_after_backward, raises NotImplementedError."
            return AdapterResult(one.adapter, one.promise, problem, is_written=False)
        return AdapterResult(one.adapter, one.promise, str(error))
    return AdapterResult(one.adapter, one.promise)


def _load(path: str) -> ModuleType:
    """The module of the adapters, whose project's packages can be imported from now on."""
    tests = Path(path).parent
    for folder in (tests.parent, tests.parent / "cs336-basics"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    name = f"{tests.name}.{Path(path).stem}"  # in its package, so that `from .common import ...` works
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


# Programs of the ranks


class WrappedModel:
    """A model behind one of the adapters for data parallelism, in the releases of 2025 and 2026."""

    def __init__(self, path: str, adapter: str, model: nn.Module, **options: Any) -> None:
        self._adapters, self._stem = _load(path), adapter.removeprefix("get_")
        self.model = getattr(self._adapters, adapter)(model, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def step(self, batch: torch.Tensor) -> None:
        """Make the gradients of a batch's mean square, as the assignment's own loop does."""
        if start := getattr(self._adapters, f"{self._stem}_on_train_batch_start", None):
            start(self.model, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        with _measured():
            self.model(batch).float().square().mean().backward()
            getattr(self._adapters, f"{self._stem}_on_after_backward")(self.model, self.optimizer)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The unsharded parameters by their names in the model that was wrapped."""
        full = getattr(self._adapters, f"{self._stem}_gather_full_params")(self.model)
        return {name.removeprefix("module."): tensor.detach().float().clone() for name, tensor in full.items()}


@contextmanager
def _measured() -> Iterator[None]:
    """Mark what is done inside as one of the steps whose messages are looked at."""
    _mark()
    yield
    _mark()


def _mark() -> None:
    with span("mark", kind="mark"):
        emulate.spend(1e-9)  # only what takes time has an event


def _options(adapter: str) -> dict[str, Any]:
    return {"bucket_size_mb": BUCKET_MB} if adapter == "get_ddp_bucketed" else {}


def _rows(rank: int, step: int) -> torch.Tensor:
    return torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def _tokens(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, 64, (ROWS,), generator=torch.Generator().manual_seed(100 * step + rank))


def _copies(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def _train_ddp(path: str, adapter: str) -> list[list[torch.Tensor]]:
    """The weights at the start and after each step of a model that is made differently on each rank."""
    torch.manual_seed(dist.get_rank())
    wrapped = WrappedModel(path, adapter, TiedModel(), **_options(adapter))
    taken = [_copies(wrapped.model.parameters())]
    for step in range(STEPS):
        wrapped.step(_rows(dist.get_rank(), step))
        wrapped.optimizer.step()
        taken.append(_copies(wrapped.model.parameters()))
    return taken


def _time_ddp(path: str, adapter: str) -> None:
    wrapped = WrappedModel(path, adapter, TimedModel(), **_options(adapter))
    for _ in range(3):  # torch's DDP makes its buckets in the first two
        dist.barrier()  # the ranks begin a step together
        wrapped.step(torch.ones(2, WIDTH))


class CountedAdamW(torch.optim.AdamW):
    """AdamW that knows its instances, wherever a sharded optimizer keeps them."""

    made: ClassVar[list[torch.optim.Optimizer]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made.append(self)

    @classmethod
    def num_state_elements(cls) -> int:
        """The elements of the states of all instances in this process, without the counts of steps."""
        states = (state for optimizer in cls.made for state in optimizer.state.values())
        tensors = {id(one): one for state in states for one in state.values() if isinstance(one, torch.Tensor)}
        return sum(one.numel() for one in tensors.values() if one.dim() > 0)


def _train_sharded(path: str, adapter: str, has_groups: bool) -> tuple[list[torch.Tensor], int]:
    """The weights after some steps, and the elements of optimizer states that this rank holds.

    The ranks have the same gradients, as after DDP.
    """
    torch.manual_seed(0)
    model = TimedModel()
    _optimize(model, getattr(_load(path), adapter)(_parameters(model, has_groups), CountedAdamW, **ADAM))
    return _copies(model.parameters()), CountedAdamW.num_state_elements()


def _parameters(model: nn.Module, has_groups: bool) -> Any:
    """A model's parameters, or two groups of them, of which the second learns ten times as slowly."""
    first, *others = model.parameters()
    return [{"params": [first]}, {"params": others, "lr": ADAM["lr"] / 10}] if has_groups else model.parameters()


def _optimize(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        with _measured():
            optimizer.step()


def _train_fsdp(path: str, adapter: str, dtype: torch.dtype | None = None) -> tuple[list[dict[str, torch.Tensor]], int]:
    """The full weights after each step, and the bytes of parameters that this rank keeps between steps."""
    torch.manual_seed(0)
    wrapped, taken = WrappedModel(path, adapter, TokenModel(), compute_dtype=dtype), []
    for step in range(STEPS):
        wrapped.step(_tokens(dist.get_rank(), step))
        wrapped.optimizer.step()
        taken.append(wrapped.full_parameters())
    kept = (getattr(parameter, "_local_tensor", parameter) for parameter in wrapped.model.parameters())
    return taken, sum(shard.nbytes for shard in kept)  # torch's DTensor counts those of all ranks


# Checks, in this process


@functools.cache  # several checks look at the same run
def _run(program: Callable[..., Any], *args: object) -> Run:
    return run(program, *args, world_size=NUM_RANKS, cluster="dgx-h100", compute="none", echo=False)


def _plain(model: nn.Module, batch_of: Callable[[int, int], torch.Tensor], state: Callable[[], Any]) -> list[Any]:
    """The state after each step of one process that takes the batches of all ranks together."""
    optimizer, taken = torch.optim.SGD(model.parameters(), lr=RATE), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(NUM_RANKS):
            (model(batch_of(rank, step)).square().mean() / NUM_RANKS).backward()
        optimizer.step()
        taken.append(state())
    return taken


def _expect_equal(given: torch.Tensor, wanted: torch.Tensor, before: torch.Tensor, what: str) -> None:
    """Compare a weight with that of one process; the hint recognises a sum, and a mean of means."""
    if given.shape == wanted.shape and torch.allclose(given, wanted, rtol=1e-4, atol=1e-6):
        return
    if given.shape != wanted.shape:
        raise CheckFailed(f"{what} to have the shape {tuple(wanted.shape)}", tuple(given.shape))
    update, due = given - before, wanted - before
    hint = "start every rank from rank 0's weights, and step with the mean of all ranks' gradients"
    if torch.allclose(update, due * NUM_RANKS, rtol=1e-2, atol=1e-6):
        hint = "that is the update for the sum of the gradients: divide by the number of ranks"
    elif torch.allclose(update, due / NUM_RANKS, rtol=1e-2, atol=1e-6):
        hint = "that is the update for the mean, divided by the number of ranks a second time"
    off = float((given - wanted).abs().max())
    raise CheckFailed(f"{what} to be that of one process with all batches", f"up to {off:.2g} off", hint)


def _ddp_starts_alike(path: str, adapter: str) -> None:
    torch.manual_seed(0)
    wanted = _copies(TiedModel().parameters())
    for rank, taken in enumerate(_run(_train_ddp, path, adapter).values):
        if len(taken[0]) != len(wanted):
            hint = "keep the module's own parameters, and make buffers plain tensors"
            raise CheckFailed(f"{len(wanted)} parameters", len(taken[0]), hint)
        for number, (given, first) in enumerate(zip(taken[0], wanted, strict=True)):
            if not torch.equal(given, first):
                hint = "broadcast every parameter from rank 0 in the constructor, frozen ones too"
                raise CheckFailed(f"parameter {number} on rank {rank} to be rank 0's", "other numbers", hint)


def _ddp_averages(path: str, adapter: str) -> None:
    torch.manual_seed(0)
    model = TiedModel()
    start = _copies(model.parameters())
    wanted = [start, *_plain(model, _rows, lambda: _copies(model.parameters()))]
    ranks = _run(_train_ddp, path, adapter).values
    for step in range(1, STEPS + 1):
        for rank, taken in enumerate(ranks):
            for number, given in enumerate(taken[step]):
                what = f"parameter {number} on rank {rank} after step {step}"
                _expect_equal(given, wanted[step][number], wanted[step - 1][number], what)


def _ddp_overlaps(path: str, adapter: str) -> None:
    events, sent = _last_step(path, adapter)
    backward = [event for event in events if event.kind == "backward"]
    hidden = [event for event in sent if any(_overlap_s(event, work) > 1e-9 for work in backward)]
    size_bytes, hidden_bytes = (sum(event.size_bytes for event in some) for some in (sent, hidden))
    if hidden_bytes < size_bytes / 2 or not sent:
        late_s = max(0.0, max((event.end_s for event in sent), default=0.0) - backward[-1].end_s)
        raise CheckFailed(
            "at least half of the bytes to travel while backward computes",
            f"{format_bytes(hidden_bytes)} of {format_bytes(size_bytes)}; "
            f"the last message ends {format_time_s(late_s)} after backward",
            "the hook waits for its all-reduce: start it with async_op=True, and wait after backward"
            if any(event.start_s < backward[-1].start_s for event in sent)
            else "start each all-reduce with async_op=True in a hook of the gradient, and wait for it after backward",
        )


def _last_step(path: str, adapter: str) -> tuple[list[Event], list[Event]]:
    """Rank 0's events of the last timed step, and those of them that are messages."""
    events = _run(_time_ddp, path, adapter).timeline.of(0)
    start_s, end_s = _steps(events)[-1]
    within = [event for event in events if start_s <= event.start_s <= end_s]
    return within, [event for event in within if event.kind == COMMUNICATION and event.size_bytes]


def _overlap_s(one: Event, other: Event) -> float:
    return min(one.end_s, other.end_s) - max(one.start_s, other.start_s)


def _ddp_fills_buckets(path: str, adapter: str) -> None:
    num_messages = len(_last_step(path, adapter)[1])
    if num_messages >= NUM_LAYERS:
        raise CheckFailed(
            f"fewer messages than the {NUM_LAYERS} gradients, of which two fit into a bucket of {BUCKET_MB:g} MB",
            num_messages,
            "send a bucket's gradients side by side in one tensor, when the last of them is there",
        )


def _ddp_sends_gradients_once(path: str, adapter: str) -> None:
    wanted = _num_bytes(TimedModel())
    _expect_bytes(_step_bytes(_run(_time_ddp, path, adapter)), wanted, "a step", "each gradient travels once")


def _steps(events: Iterable[Event]) -> list[tuple[float, float]]:
    """When each of a rank's marked steps began and ended."""
    marks_s = [event.start_s for event in events if event.kind == "mark"]
    return list(zip(marks_s[::2], marks_s[1::2], strict=True))


def _step_bytes(run: Run, name: str = "") -> int:
    """The most bytes of rank 0's communication in a step, by those operations whose names begin so."""
    events = run.timeline.of(0)
    sent = [event for event in events if event.kind == COMMUNICATION and event.name.startswith(name)]
    return max(
        sum(event.size_bytes for event in sent if start_s <= event.start_s <= end_s)
        for start_s, end_s in _steps(events)
    )


def _expect_bytes(given: float, wanted: float, what: str, hint: str) -> None:
    if not 0.99 * wanted <= given <= 1.01 * wanted:
        raise CheckFailed(f"{what} to send {format_bytes(wanted)}", format_bytes(given), hint)


def _optimizer_updates(path: str, adapter: str, has_groups: bool = False) -> None:
    torch.manual_seed(0)
    model = TimedModel()
    start = _copies(model.parameters())
    _optimize(model, torch.optim.AdamW(_parameters(model, has_groups), **ADAM))
    ranks = [weights for weights, _ in _run(_train_sharded, path, adapter, has_groups).values]
    for number, (wanted, before) in enumerate(zip(_copies(model.parameters()), start, strict=True)):
        for rank, given in enumerate(weights[number] for weights in ranks):
            if torch.allclose(given, wanted, rtol=1e-4, atol=1e-6):
                continue
            if all(unchanged := [torch.equal(weights[number], before) for weights in ranks]):
                hint = "no rank updates it: each parameter goes to one rank's optimizer"
            elif any(unchanged):
                hint = "after its step, each rank sends the parameters that it has updated to all others"
            elif has_groups:
                hint = "the options of a parameter group go to the optimizer that holds its parameters"
            else:
                hint = "pass all keyword arguments on to the optimizer that you wrap"
            what = f"parameter {number} on rank {rank} to be that of one process's AdamW"
            raise CheckFailed(what, f"up to {float((given - wanted).abs().max()):.2g} off", hint)


def _optimizer_shards(path: str, adapter: str) -> None:
    due = 2 * sum(parameter.numel() for parameter in TimedModel().parameters())
    held = [num_elements for _, num_elements in _run(_train_sharded, path, adapter, False).values]
    if sum(held) < due:
        raise CheckFailed(
            f"states of {due:,} elements on all ranks together",
            f"{sum(held):,}",
            "make the ranks' optimizers from the class that you are given",
        )
    if max(held) > 1.25 * due / NUM_RANKS:
        raise CheckFailed(
            f"states of {due // NUM_RANKS:,} elements on each of {NUM_RANKS} ranks",
            f"{max(held):,} on rank {held.index(max(held))}",
            "give each rank's optimizer only the parameters that the rank owns",
        )


def _optimizer_sends_parameters_once(path: str, adapter: str) -> None:
    wanted = _num_bytes(TimedModel())
    sent = _step_bytes(_run(_train_sharded, path, adapter, False))
    _expect_bytes(sent, wanted, "step()", "each parameter travels once, from the rank that has updated it")


def _fsdp_updates(path: str, adapter: str) -> None:
    torch.manual_seed(0)
    model = TokenModel()

    def named() -> dict[str, torch.Tensor]:
        return {name: one.detach().clone() for name, one in model.named_parameters()}

    wanted = [named(), *_plain(model, _tokens, named)]
    for rank, (taken, _) in enumerate(_run(_train_fsdp, path, adapter).values):
        for step, full in enumerate(taken, start=1):
            if full.keys() != wanted[step].keys():
                raise CheckFailed(f"parameters called {', '.join(wanted[step])}", ", ".join(full))
            for name, given in full.items():
                _expect_equal(given, wanted[step][name], wanted[step - 1][name], f"{name} on rank {rank}, step {step},")


def _fsdp_shards(path: str, adapter: str) -> None:
    due = _num_bytes(TokenModel()) / NUM_RANKS
    kept = max(kept for _, kept in _run(_train_fsdp, path, adapter).values)
    if kept > 1.1 * due:
        raise CheckFailed(
            f"{format_bytes(due)} of parameters on each rank between steps",
            format_bytes(kept),
            "free the gathered weights when a layer is done with them, and give the optimizer the shards",
        )


def _num_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _fsdp_sends_what_it_needs(path: str, adapter: str) -> None:
    model = TokenModel()
    size, whole = _num_bytes(model), _num_bytes(model.scale)
    run = _run(_train_fsdp, path, adapter)
    if (gathered := _step_bytes(run, "all_gather")) > 2.01 * size:
        hint = "a layer's weights are gathered once forward and once backward"
        raise CheckFailed(f"all-gathers of {format_bytes(2 * size)} in a step at most", format_bytes(gathered), hint)
    if (other := _step_bytes(run, "all_reduce")) > whole:
        hint = "use reduce-scatter: of a weight that is sharded, a rank needs the mean of its own shard only"
        raise CheckFailed(f"all-reduces of {format_bytes(whole)} at most, for the scale", format_bytes(other), hint)
    reduced = _step_bytes(run, "reduce") + other
    _expect_bytes(
        reduced, size, "a step", "each gradient goes into one reduce-scatter, of which a rank keeps its shard"
    )


def _fsdp_gathers_in_the_dtype(path: str, adapter: str) -> None:
    whole = _step_bytes(_run(_train_fsdp, path, adapter), "all_gather")
    run = _run(_train_fsdp, path, adapter, torch.bfloat16)
    half = _step_bytes(run, "all_gather")
    if half > 0.8 * whole or not whole:
        raise CheckFailed(
            f"compute_dtype=torch.bfloat16 to gather half of the {format_bytes(whole)} of float32",
            format_bytes(half),
            "cast the shard before the all-gather",
        )
    due, kept = _num_bytes(TokenModel()) / NUM_RANKS, max(kept for _, kept in run.values)
    if kept < 0.9 * due:
        hint = "cast a copy of the shard for each gather, and let the optimizer keep the float32 one"
        raise CheckFailed(f"{format_bytes(due)} of float32 shards on a rank", format_bytes(kept), hint)


@dataclass(frozen=True)
class AdapterCheck:
    """A check of one adapter, with what that promises."""

    adapter: str
    promise: str
    function: Callable[[str, str], None]


CHECKS = [
    *(
        AdapterCheck(adapter, promise, function)
        for adapter in ("get_ddp", "get_ddp_individual_parameters", "get_ddp_bucketed")
        for promise, function in (
            ("all ranks start with rank 0's parameters", _ddp_starts_alike),
            ("steps are those of one process with all batches", _ddp_averages),
            ("gradients travel while backward computes", _ddp_overlaps),
            ("a step sends each gradient once", _ddp_sends_gradients_once),
        )
    ),
    AdapterCheck("get_ddp_bucketed", "a step sends buckets", _ddp_fills_buckets),
    AdapterCheck("get_sharded_optimizer", "steps are those of one process", _optimizer_updates),
    AdapterCheck(
        "get_sharded_optimizer",
        "parameter groups keep their options",
        functools.partial(_optimizer_updates, has_groups=True),
    ),
    AdapterCheck("get_sharded_optimizer", "a rank holds its share of the states", _optimizer_shards),
    AdapterCheck("get_sharded_optimizer", "a step sends each parameter once", _optimizer_sends_parameters_once),
    AdapterCheck("get_fsdp", "steps are those of one process with all batches", _fsdp_updates),
    AdapterCheck("get_fsdp", "a rank keeps its shards between steps", _fsdp_shards),
    AdapterCheck("get_fsdp", "a step gathers weights twice and scatters gradients once", _fsdp_sends_what_it_needs),
    AdapterCheck("get_fsdp", "weights are gathered in compute_dtype and kept in float32", _fsdp_gathers_in_the_dtype),
]
