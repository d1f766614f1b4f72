"""Observer of training: forward passes, backward passes, optimizer steps, and DDP around them."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from worldsize.audit import expecting
from worldsize.audit.names import Names
from worldsize.audit.notes import PERTURBED, Notebook
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.sketches import sketch
from worldsize.source import Line, line_of

_PERTURBING_SEED = 44
_MOST_NODES = 20_000  # of a graph of autograd that is searched
_MEANS = (
    "MeanBackward",
    "MseLossBackward",
    "NllLossBackward",
    "NllLoss2DBackward",
    "BinaryCrossEntropy",
    "SmoothL1Loss",
)


class TrainingObserver:
    """An observer of what enters models, which gradients come out, and what optimizers hold before each step."""

    def __init__(self, notebook: Notebook, names: Names, every: int) -> None:
        self._notebook, self._names, self._every = notebook, names, every
        self._depth = 0
        self._ddps: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._in_ddp = 0
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_optimizers = 0
        self._num_steps: dict[int, int] = {}
        self._sketches: dict[int, tuple[tuple[int, int], list[float]]] = {}  # id -> version, sketch
        self._hidden: list[tuple[Any, str, Line | None]] = []  # graph nodes whose values a collective has changed
        self._perturbed: set[int] = set()
        self._said: set[str] = set()  # names that are not in DDP's list
        self._changed: dict[int, Line | None] = {}  # id of a parameter -> where it was registered or unfrozen last
        self._sums: list[tuple[Any, Line | None]] = []  # functions of autograd's that sum over ranks
        self._local_lines: dict[int, Line | None] = {}  # id of a DDP whose last forward was inside no_sync -> its line

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        for handle in (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            stack.callback(handle.remove)
        stack.callback(register_module_parameter_registration_hook(self._take_registration).remove)
        stack.callback(register_module_module_registration_hook(self._take_module).remove)
        replace(stack, torch.Tensor, "requires_grad_", self._wrap_requires_grad)
        replace(stack, torch.autograd, "backward", self._wrap_backward)
        replace(stack, DistributedDataParallel, "__init__", self._wrap_ddp)
        replace(stack, DistributedDataParallel, "forward", self._wrap_ddp_forward)
        replace(stack, DistributedDataParallel, "no_sync", self._wrap_no_sync)

    @property
    def is_due(self) -> bool:
        """Whether this step is one of those in which tensors are sketched."""
        return (self._notebook.step - 1) % self._every == 0

    def finish(self) -> None:
        """Write what is there at the end."""
        with quietly():
            self._weights("weights at the end")
            self._buffers("buffers at the end")
            self._look_at_ddp()
        self._notebook.say("ended")

    def forget(self) -> None:
        """Sketch every tensor anew: a collective writes into tensors without a new version."""
        self._sketches.clear()

    def hide(self, node: Any, op: str, line: Line | None) -> None:
        """Remember the node of autograd's whose tensor is communicated without autograd's knowledge."""
        self._hidden.append((node, op, line))

    def sum_inside(self, node: Any, line: Line | None) -> None:
        """Remember a function of autograd's that sums over ranks by itself."""
        self._sums.append((node, line))

    # forward

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        with quietly():
            if self._depth == 1 or isinstance(module, DistributedDataParallel):
                self._names.learn(module)
                if PERTURBED in os.environ:
                    self._perturb(module)
            owner = self._bypassed(module)
            if owner is not None:
                self._notebook.say("forward past DDP", model=type(module).__name__)
            if (self._depth == 1) and torch.is_grad_enabled() and module.training:
                self._note_input(module, args)
            if module._buffers and torch.is_grad_enabled() and module.training and self.is_due:
                self._buffers("buffers", module)

    def _perturb(self, module: nn.Module) -> None:
        """Change a module's weights in their last bits, once."""
        generator = torch.Generator().manual_seed(_PERTURBING_SEED)
        with torch.no_grad():
            for parameter in module.parameters():
                if id(parameter) not in self._perturbed:
                    self._perturbed.add(id(parameter))
                    signs = torch.randint(2, parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + signs.to(parameter.dtype) * torch.finfo(parameter.dtype).eps)

    def _note_input(self, module: nn.Module, args: Any) -> None:
        inputs = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor) and one.numel() > 1]
        if inputs and self.is_due:
            state = torch.get_rng_state()
            self._notebook.say(
                "forward",
                model=type(module).__name__,
                is_ddp=isinstance(module, DistributedDataParallel),
                is_sharded=any(hasattr(p, "placements") for p in module.parameters()),
                inputs=[sketch(one) for one in inputs],
                shapes=[list(one.shape) for one in inputs],
                generator=sketch(state),
                draws=any(
                    isinstance(m, nn.modules.dropout._DropoutNd) and m.p and m.training for m in module.modules()
                ),
                mesh=_sharding_ranks(module),
            )

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._depth -= 1

    def _bypassed(self, module: nn.Module) -> DistributedDataParallel | None:
        """The DDP whose module is called past it, with gradients."""
        if self._in_ddp or not torch.is_grad_enabled() or self._depth != 1:
            return None
        for ddp in self._ddps:
            if ddp.module is module or any(part is module for part in ddp.module.modules()):
                return ddp
        return None

    def _take_registration(self, _module: nn.Module, _name: str, parameter: Any) -> None:
        if self._ddps and parameter is not None:
            self._changed[id(parameter)] = line_of(sys._getframe(1))

    def _take_module(self, _module: nn.Module, _name: str, part: Any) -> None:
        if self._ddps and part is not None:
            self._changed.update({id(p): line_of(sys._getframe(1)) for p in part.parameters()})

    def _wrap_requires_grad(self, unfreeze: Callable[..., Any]) -> Callable[..., Any]:
        def unfrozen(tensor: torch.Tensor, requires_grad: bool = True) -> Any:
            if self._ddps and requires_grad and not tensor.requires_grad:
                self._changed[id(tensor)] = line_of(sys._getframe(1))
            return unfreeze(tensor, requires_grad)

        return unfrozen

    # DDP

    def _wrap_ddp(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:
            init(ddp, *args, **kwargs)
            with quietly():
                self._ddps.add(ddp)
                self._names.learn(ddp)
                ddp._worldsize_reduced = {id(p) for p in ddp.module.parameters() if p.requires_grad}
                self._notebook.say(
                    "DDP",
                    names=[self._names.of(p) for p in ddp.module.parameters() if p.requires_grad],
                    broadcasts_buffers=ddp.broadcast_buffers,
                    ranks=torch.distributed.get_process_group_ranks(ddp.process_group),
                )

        return __init__

    def _wrap_ddp_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def __forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
            self._in_ddp += 1
            if not ddp.require_backward_grad_sync and torch.is_grad_enabled():
                self._local_lines[id(ddp)] = line_of(sys._getframe(1))
            else:
                self._local_lines.pop(id(ddp), None)
            try:
                return forward(ddp, *args, **kwargs)
            finally:
                self._in_ddp -= 1

        return __forward

    def _wrap_no_sync(self, no_sync: Callable[..., Any]) -> Callable[..., Any]:
        def entered(ddp: Any) -> Any:
            self._notebook.say("no_sync")
            return no_sync(ddp)

        return entered

    def _look_at_ddp(self) -> None:
        """Note parameters in DDP's module that are trained and that it did not know when it was made."""
        for ddp in self._ddps:
            known = getattr(ddp, "_worldsize_reduced", ())
            for name, parameter in ddp.module.named_parameters():
                if parameter.requires_grad and id(parameter) not in known and name not in self._said:
                    self._said.add(name)
                    self._names.learn(ddp)
                    self._notebook.say(
                        "not in DDP's list", self._changed.get(id(parameter)), name=self._names.of(parameter)
                    )

    # backward

    def _wrap_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        def observed(tensors: Any, *args: Any, **kwargs: Any) -> None:
            leaves: list[torch.Tensor] = []
            with quietly():
                leaves = self._before_backward(tensors)
            backward(tensors, *args, **kwargs)
            with quietly():
                if self.is_due:
                    self._gradients("gradients after backward", leaves)

        return observed

    def _before_backward(self, tensors: Any) -> list[torch.Tensor]:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        leaves, nodes = _search(roots)
        self._names.name_loose(leaves)
        for node, op, line in self._hidden:
            self._notebook.say("collective in backward", line, op=op, is_followed=any(one is node for one in nodes))
        for node, line in self._sums:
            if any(one is node for one in nodes) and (name := _bias_below(node, self._names)):
                self._notebook.say("bias summed over ranks", line, name=name)
        self._hidden.clear()
        self._sums.clear()
        if not self._num_steps and self.is_due:
            self._weights("weights before backward")
        self._look_at_ddp()
        root = roots[0]
        if root.numel() == 1:
            kind = type(root.grad_fn).__name__ if root.grad_fn is not None else ""
            count = _num_averaged(root.grad_fn)
            self._notebook.say(
                "loss", value=float(root.detach()), function=kind, is_mean=kind.startswith(_MEANS), count=count
            )
        return leaves

    def _gradients(self, kind: str, parameters: Sequence[torch.Tensor]) -> None:
        named = {}
        known = {id(parameter) for parameter in parameters}
        held = [*parameters, *(p for _, p in self._names.parameters() if id(p) not in known)]
        for parameter in held:
            name = self._names.of(parameter)
            if name and parameter.grad is not None and _has_memory(parameter.grad):
                named[name] = self._sketched(parameter.grad)
        self._notebook.say(kind, of=named, unsynchronised=bool(self._local_lines))

    # optimizers

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_torchs_step():
            return
        with quietly():
            number = self._optimizers.get(optimizer)
            if number is None:
                number = self._optimizers[optimizer] = self._num_optimizers
                self._num_optimizers += 1
            self._num_steps[number] = self._num_steps.get(number, 0) + 1
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._names.name_loose(parameters)
            if not self.is_due:
                return
            name_of = {id(p): self._names.of(p) for p in parameters}
            lost = [name_of[id(p)] for p in parameters if p.requires_grad and p.grad is None]
            held = {_address(p) for p in parameters}
            outside = [n for n, p in self._names.parameters() if p.grad is not None and _address(p) not in held]
            options = [{k: v for k, v in g.items() if isinstance(v, int | float)} for g in optimizer.param_groups]
            self._notebook.say(
                "before step",
                optimizer=number,
                kind=type(optimizer).__name__,
                count=self._num_steps[number],
                names=[name_of[id(p)] for p in parameters],
                weights={name_of[id(p)]: self._sketched(p) for p in parameters if name_of[id(p)]},
                gradients={name_of[id(p)]: self._sketched(p.grad) for p in parameters if p.grad is not None},
                without=lost,
                frozen=[name_of[id(p)] for p in parameters if not p.requires_grad],
                outside=outside,
                options=options,
                has_state=any(len(optimizer.state.get(p, ())) for p in parameters),
                is_expected=expecting.is_expected(),
            )
            if self._local_lines:
                line = next(iter(self._local_lines.values()))
                self._notebook.say("step after no_sync", line)

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_torchs_step():
            return
        self._notebook.step += 1
        self._sketches.clear()
        self._notebook.flush()

    @staticmethod
    def _is_torchs_step() -> bool:
        """Whether torch steps by itself, with learning rate 0, to make an optimizer's state."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "_init_optim_state":
                return True
            frame = frame.f_back
        return False

    def _weights(self, kind: str) -> None:
        named = {name: self._sketched(one) for name, one in self._names.parameters() if _has_memory(one)}
        matrices = [name for name, one in self._names.parameters() if one.dim() > 1]
        self._notebook.say(kind, of=named, matrices=matrices)

    def _buffers(self, kind: str, module: nn.Module | None = None) -> None:
        """Note a module's own buffers, or those of all modules."""
        own = None if module is None else {id(buffer) for buffer in module._buffers.values()}
        buffers = [(name, one) for name, one in self._names.buffers() if own is None or id(one) in own]
        if buffers:
            self._notebook.say(kind, of={name: sketch(buffer) for name, buffer in buffers})

    def _sketched(self, tensor: torch.Tensor) -> list[float]:
        version = tensor._version, tensor.numel()
        cached = self._sketches.get(id(tensor))
        if cached is None or cached[0] != version:
            cached = self._sketches[id(tensor)] = version, sketch(tensor)
        return cached[1]


def _address(parameter: torch.Tensor) -> int:
    """Where a parameter's elements are: a DTensor may be made of one that an optimizer holds, as in DDP."""
    return getattr(parameter, "_local_tensor", parameter).data_ptr()


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are there; FSDP2 frees those of gathered parameters."""
    return hasattr(tensor, "placements") or tensor.untyped_storage().size() > 0


def _num_averaged(node: Any) -> float | None:
    """How many elements a loss is the mean of, if its last operation is a mean."""
    for name in ("_saved_total_weight", "_saved_self_sym_numel", "_saved_self"):
        value = getattr(node, name, None)
        if value is not None:
            is_count = name != "_saved_self" or not isinstance(value, torch.Tensor)
            return float(value) if is_count else float(value.numel())
    return None


def _search(roots: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """The leaves that these tensors depend on, in the order in which they are found, and the nodes between."""
    leaves: list[torch.Tensor] = []
    nodes: list[Any] = []
    seen: set[Any] = set()
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    while waiting and len(nodes) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes.append(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        waiting.extend(below for below, _ in reversed(node.next_functions) if below is not None)
    return leaves, nodes


def _bias_below(node: Any, names: Names) -> str:
    """The name of a vector that is a parameter and was added last to what a node got, perhaps multiplied."""
    added = [below for below, _ in node.next_functions if type(below).__name__.startswith(("Add", "Addmm"))]
    for below in [below for one in added for below, _ in one.next_functions]:
        inner = below.next_functions if type(below).__name__.startswith(("Div", "Mul")) else ()
        for leaf in (getattr(one, "variable", None) for one in (below, *(one for one, _ in inner))):
            if leaf is not None and leaf.dim() == 1:
                return names.of(leaf) or "a bias"
    return ""


def _sharding_ranks(module: nn.Module) -> list[int]:
    """The ranks over which FSDP2 shards a module; none if it does not."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(module, FSDPModule):
        return []
    for parameter in module.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and mesh.ndim == 1:
            return list(mesh.mesh.flatten().tolist())
    return []
