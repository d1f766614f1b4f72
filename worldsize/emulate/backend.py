"""A rank's side of the emulated cluster: a process group whose every call goes to the conductor."""

# torch's own signatures name these parameters in three ways, by version; it passes them by place
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from worldsize import frames
from worldsize.emulate.compute import Meter, meter_of
from worldsize.emulate.conductor import Forbidden, refusal
from worldsize.emulate.record import COMPUTE, POST, WAIT

BACKEND = "emulated"
_PATIENCE_S = 0.1  # how long a rank waits for an answer before it says that it can do nothing else
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_wire: Wire | None = None


class Wire:
    """The socket to the conductor: any thread posts, one thread takes the answers."""

    def __init__(self, sock: socket.socket, rank: int, allow: Iterable[str] | None, meter: Meter) -> None:
        self.rank, self.meter = rank, meter
        self._sock = sock
        self._allow = None if allow is None else frozenset(allow)
        self._lock = threading.Lock()
        self._num_posts = 0
        self._groups: set[str] = set()
        self._works: dict[int, Work] = {}
        self._steps: list[tuple[str, int, float, str]] = []

    def step(self, kind: str, number: int) -> None:
        """Keeps what this rank has done, its own work before that first; it goes out with the next message."""
        if duration_s := self.meter.take_s():
            self._steps.append((COMPUTE, 0, duration_s, ""))
        self._steps.append((kind, number, 0.0, ""))

    def post(
        self,
        op: str,
        group: str,
        ranks: Sequence[int],
        body: bytes,
        fill: Callable[[bytes], Any],
        result: Any,
        **fields: Any,
    ) -> Work:
        """The work of a call; when the answer comes, `fill` puts it where it belongs."""
        if self._allow is not None and op not in self._allow:
            raise Forbidden(refusal(op, self._allow))
        with self._lock:
            self._num_posts += 1
            number = self._num_posts
            work = self._works[number] = Work(self, number, fill, result)
            self.step(POST, number)
            if group not in self._groups:  # its members are told once: of 256 ranks they are a kilobyte
                self._groups.add(group)
                fields["ranks"] = ranks
            self._send("post", body, number=number, op=op, group=group, **fields)
        return work

    def say_waiting(self, number: int) -> None:
        """Tells the conductor that this rank can do nothing until a post is answered."""
        with self._lock:
            self._send("wait", number=number)

    def leave(self) -> None:
        """Tells the conductor that this rank posts no more, and what it did last."""
        with self._lock:
            self._steps.append((COMPUTE, 0, self.meter.take_s(), ""))
            self._send("leave")

    def _send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        steps, self._steps = self._steps, []
        frames.send(self._sock, kind, body, steps=steps, **fields)

    def listen(self) -> None:
        """Takes answers until the conductor hangs up."""
        while (message := frames.receive(self._sock)) is not None:
            self._works.pop(message[0]["number"]).take(message[1])


class Work(dist._Work):  # type: ignore[name-defined]
    """One call under way."""

    def __init__(self, wire: Wire, number: int, fill: Callable[[bytes], Any], result: Any) -> None:
        super().__init__()
        self._wire, self._number, self._fill, self._result = wire, number, fill, result
        self._is_there = threading.Event()
        self._lock = threading.Lock()
        self._futures: list[torch.futures.Future[Any]] = []

    def take(self, body: bytes) -> None:
        """Puts the answer where it belongs; called by the thread that listens."""
        self._fill(body)
        with self._lock:
            self._is_there.set()
            futures, self._futures = self._futures, []
        for future in futures:  # what hangs on it may itself wait for an answer, so not in this thread
            threading.Thread(target=future.set_result, args=(self._result,), daemon=True).start()

    def wait(self, timeout: Any = None) -> bool:
        """True once the answer is there; in virtual time, the rank waits for the end of the call."""
        if not self._is_there.wait(_PATIENCE_S):
            self._wire.say_waiting(self._number)
            self._is_there.wait()
        self._wire.step(WAIT, self._number)
        return True

    def is_completed(self) -> bool:
        """True when the answer is there."""
        return self._is_there.is_set()

    def is_success(self) -> bool:
        """True when the answer is there: nothing goes wrong on the way."""
        return self._is_there.is_set()

    def result(self) -> Any:
        """The tensors that the call has filled."""
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors. Inside backward nobody says when it is joined: at backward's end, as DDP does."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        if torch._C._current_graph_task_id() != -1:  # type: ignore[attr-defined]
            join = lambda: self._wire.step(WAIT, self._number)  # noqa: E731
            torch.autograd.Variable._execution_engine.queue_callback(join)  # type: ignore[attr-defined]
        with self._lock:
            if not self._is_there.is_set():
                self._futures.append(future)
                return future
        future.set_result(self._result)
        return future


class Group(dist.ProcessGroup):
    """A process group of ranks on the emulated cluster."""

    def __init__(self, wire: Wire, name: str, ranks: Sequence[int]) -> None:
        self._ranks = tuple(ranks)
        super().__init__(self._ranks.index(wire.rank), len(ranks))  # pyright: ignore[reportCallIssue]
        self._wire, self._name = wire, name

    def getBackendName(self) -> str:
        """The name that torch shows."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """The name under which torch knows the group."""
        return self._name

    def _post(
        self,
        op: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        result: Any = None,
        **fields: Any,
    ) -> Work:
        tensor = next(iter([*inputs, *outputs]), None)
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        return self._wire.post(
            op,
            self._name,
            self._ranks,
            b"".join(map(_bytes_of, inputs)),
            lambda body: _fill(outputs, body),
            list(outputs) if result is None else result,
            dtype=dtype,
            num_items=sum(one.numel() for one in inputs),
            **fields,
        )

    def _global(self, rank: int) -> int:
        return self._ranks[rank]

    # messages

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Sends one tensor."""
        return self._post("send", tensors, [], peer=self._global(dst), tag=tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Receives one tensor."""
        return self._post("recv", [], tensors, peer=self._global(src), tag=tag)

    # collectives

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Reduces tensors over the group, in place."""
        return self._post("all_reduce", tensors, tensors, reduction=_name_of(opts.reduceOp if opts else None))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """The same of several tensors at once."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Gives everybody the root's tensor."""
        root = self._global(opts.rootRank)
        return self._post("broadcast", tensors, tensors, peer=root)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduces to the root."""
        return self._post(
            "reduce", tensors, tensors, peer=self._global(opts.rootRank), reduction=_name_of(opts.reduceOp)
        )

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Gives everybody the tensors of all."""
        return self._post("all_gather", inputs, outputs[0], result=outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """The same into one tensor."""
        return self._post("all_gather", [tensor], [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """The same of several tensors, one after the other."""
        return _last_of(self.all_gather_single, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        """Reduces, and gives everybody a part."""
        splits = [one.numel() for one in inputs[0]]
        name = _name_of(opts.reduceOp if opts else None)
        return self._post("reduce_scatter", inputs[0], outputs, splits=splits, reduction=name)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """The same of one tensor."""
        splits = [output.numel()] * self.size()
        name = _name_of(opts.reduceOp if opts else None)
        return self._post("reduce_scatter", [tensor], [output], splits=splits, reduction=name)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """The same of several tensors, one after the other."""
        return _last_of(self.reduce_scatter_single, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        """Gives the root the tensors of all."""
        return self._post("gather", inputs, outputs[0] if outputs else [], peer=self._global(opts.rootRank))

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        """Gives everybody one of the root's tensors."""
        mine = inputs[0] if inputs else []
        splits = [one.numel() for one in mine]
        return self._post("scatter", mine, outputs, peer=self._global(opts.rootRank), splits=splits)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Gives each rank a tensor of each."""
        return self._post("all_to_all", inputs, outputs, splits=[one.numel() for one in inputs])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        """The same of one tensor, cut along its first dimension."""
        rows = input_splits or [tensor.shape[0] // self.size()] * self.size()
        per_row = tensor.numel() // max(1, tensor.shape[0])
        return self._post("all_to_all", [tensor], [output], splits=[num * per_row for num in rows])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Work:
        """Waits for all."""
        return self._post("barrier", [], [])


def join(
    sock: socket.socket, rank: int, world_size: int, store: Any, allow: Iterable[str] | None, compute: Any
) -> Wire:
    """The wire of this rank, once it has joined a default process group on the emulated cluster."""
    global _wire
    _wire = Wire(sock, rank, allow, meter_of(compute))
    threading.Thread(target=_wire.listen, daemon=True, name="wire").start()
    dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["cpu", "cuda"])
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size)
    _wire.meter.start()
    return _wire


def _make(options: Any, _backend_options: Any) -> Group:
    assert _wire is not None
    return Group(_wire, options.group_id, options.global_ranks_in_group or range(options.group_size))


def _last_of(call: Callable[..., Work], outputs: Sequence[Any], inputs: Sequence[Any], opts: Any) -> Work:
    """The work of the last of several calls; a group's calls end in their order, so it stands for all."""
    return [call(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]


def _name_of(reduction: Any) -> str:
    known = (name for name in _REDUCTIONS if reduction is None or reduction == getattr(dist.ReduceOp, name))
    name = next(known, None)
    if name is None:
        raise ValueError(f"the emulated cluster cannot reduce by {reduction}; it knows {', '.join(_REDUCTIONS)}")
    return name


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _fill(outputs: Sequence[torch.Tensor], body: bytes) -> None:
    """Copies the bytes into the tensors, one after the other; no bytes leave them as they are."""
    if not body:
        return
    data, start = torch.frombuffer(bytearray(body), dtype=torch.uint8), 0
    for output in outputs:
        size = output.numel() * output.element_size()
        with torch.no_grad():
            output.detach().copy_(data[start : start + size].view(output.dtype).view(output.shape))
        start += size
