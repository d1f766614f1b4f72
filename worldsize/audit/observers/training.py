"""Observer of training: forward passes, backward passes and optimizer steps."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from worldsize.audit import expecting
from worldsize.audit.names import Names
from worldsize.audit.notes import PERTURBED, Notebook, as_list
from worldsize.audit.observers.graph import bias_below, is_mean, num_averaged, search, unscaled
from worldsize.audit.observers.patching import quietly, replace
from worldsize.audit.observers.wrapping import WrappingObserver
from worldsize.audit.sketches import sketch
from worldsize.source import Line, line_of

_PERTURBING_SEED = 44
_STEP = (torch.optim.Optimizer.profile_hook_step.__code__.co_filename, "wrapper")  # calls the hooks of a step


class TrainingObserver:
    """An observer of what enters models, which gradients come out, and what optimizers hold before each step."""

    def __init__(self, notebook: Notebook, names: Names, wrapping: WrappingObserver, every: int) -> None:
        self._notebook, self._names, self._wrapping, self._every = notebook, names, wrapping, every
        self._depth = 0
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakKeyDictionary[Any, Line | None] = weakref.WeakKeyDictionary()
        self._num_steps: dict[int, int] = {}
        self._sketches: dict[int, tuple[weakref.ref[torch.Tensor], int, list[float]]] = {}  # id -> version, sketch
        self._sent: set[str] = set()  # names of gradients that were sent since the last backward pass began
        self._has_drawn = False  # whether a dropout of this forward pass has been noted
        self._hidden: list[tuple[Any, str, Line | None]] = []  # graph nodes whose values a collective has changed
        self._perturbed: set[int] = set()
        self._seeded: Line | None = None  # where torch's generator was last seeded
        self._sums: list[tuple[Any, Line | None]] = []  # functions of autograd's that sum over ranks

    def install(self, stack: contextlib.ExitStack) -> None:
        """Observe until the stack is closed."""
        for handle in (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            stack.callback(handle.remove)
        replace(stack, torch.autograd, "backward", self._wrap_backward)
        replace(stack, torch.optim.Optimizer, "__init__", self._wrap_optimizer)
        replace(stack, torch, "manual_seed", self._wrap_seed)

    @property
    def is_due(self) -> bool:
        """Whether this step is one of those in which tensors are sketched."""
        return (self._notebook.step - 1) % self._every == 0

    def has_steps_of(self, optimizer: Any) -> bool:
        """Whether an optimizer, or one that shares its groups of parameters, has taken a step."""
        groups = {id(group) for group in getattr(optimizer, "param_groups", ())}
        return any(one is optimizer or groups & {id(group) for group in one.param_groups} for one in self._optimizers)

    def finish(self) -> None:
        """Write what is there at the end."""
        with quietly():
            self._weights("weights at the end")
            self._buffers("buffers at the end")
            self._wrapping.look()
        self._notebook.say("ended", num_steps=self._num_steps, is_full=self._notebook.is_full)

    def forget(self) -> None:
        """Sketch every tensor anew: a collective writes into tensors without a new version."""
        self._sketches.clear()

    def hide(self, node: Any, op: str, line: Line | None) -> None:
        """Remember the node of autograd's whose tensor is communicated without autograd's knowledge."""
        self._hidden.append((node, op, line))

    def sum_inside(self, node: Any, line: Line | None) -> None:
        """Remember a function of autograd's that sums over ranks by itself."""
        self._sums.append((node, line))

    def send(self, name: str) -> None:
        """Take a gradient from those that a backward pass leaves: from inside it, the program sends it."""
        self._sent.add(name)

    # forward

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        with quietly():
            if self._depth == 1 or isinstance(module, DistributedDataParallel):
                self._names.learn(module)
                if PERTURBED in os.environ:
                    self._perturb(module)
            if self._depth == 1:
                self._has_drawn = False
                self._wrapping.enter(module)
            if (self._depth == 1) and torch.is_grad_enabled() and module.training:
                self._note_input(module, args)
            if module._buffers and torch.is_grad_enabled() and module.training and self.is_due:
                self._buffers("buffers", module)

    def _wrap_seed(self, seed: Callable[..., Any]) -> Callable[..., Any]:
        def seeded(*args: Any, **kwargs: Any) -> Any:
            self._seeded = line_of(sys._getframe(1))
            return seed(*args, **kwargs)

        return seeded

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
                inputs=[sketch(one) for one in inputs],
                generator=sketch(state),
                seeded=as_list(self._seeded),
                draws=any(
                    isinstance(m, nn.modules.dropout._DropoutNd) and m.p and m.training for m in module.modules()
                ),
                mesh=_sharding_ranks(module),
            )

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p and not self._has_drawn:
            with quietly():
                self._has_drawn = True
                if self.is_due and torch.is_grad_enabled() and output is not None:  # none of a pass that raised
                    self._notebook.say("dropout", read=sketch(args[0]), made=sketch(output))

    # backward

    def _wrap_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        def observed(tensors: Any, *args: Any, **kwargs: Any) -> None:
            leaves: list[torch.Tensor] = []
            with quietly():
                self._sent.clear()
                leaves = self._before_backward(tensors)
            backward(tensors, *args, **kwargs)
            with quietly():
                if self.is_due:
                    self._gradients("gradients after backward", leaves)

        return observed

    def _before_backward(self, tensors: Any) -> list[torch.Tensor]:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        leaves, nodes = search(roots)
        self._names.name_loose(leaves)
        for node, op, line in self._hidden:
            self._notebook.say("collective in backward", line, op=op, is_followed=any(one is node for one in nodes))
        for node, line in self._sums:
            if any(one is node for one in nodes) and (name := bias_below(node, self._names)):
                self._notebook.say("bias summed over ranks", line, name=name)
        self._hidden.clear()
        self._sums.clear()
        if not self._num_steps and self.is_due:
            self._weights("weights before backward")
        self._wrapping.look()
        root = roots[0]
        if root.numel() == 1:
            node = root.grad_fn
            inner, scale = unscaled(node)
            self._notebook.say(
                "loss",
                value=float(root.detach()),
                is_mean=is_mean(node),
                count=num_averaged(node),
                micro=[num_averaged(inner), scale] if is_mean(inner) and num_averaged(inner) else None,
            )
        return leaves

    def _gradients(self, kind: str, parameters: Sequence[torch.Tensor]) -> None:
        named = {}
        known = {id(parameter) for parameter in parameters}
        held = [*parameters, *(p for _, p in self._names.parameters() if id(p) not in known)]
        for parameter in held:
            name = self._names.of(parameter)
            if name and name not in self._sent and parameter.grad is not None and _has_memory(parameter.grad):
                named[name] = self._sketched(parameter.grad)
        self._notebook.say(kind, of=named, unsynchronised=bool(self._wrapping.local_lines))

    # optimizers

    def _wrap_optimizer(self, init: Callable[..., None]) -> Callable[..., None]:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._made[optimizer] = line_of(sys._getframe(1))

        return __init__

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_torchs_step():
            return
        with quietly():
            number = self._optimizers.get(optimizer)
            if number is None:
                number = self._optimizers[optimizer] = len(self._num_steps)
                self._notebook.say("optimizer", self._made.get(optimizer), number=number)
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
                outside=outside,
                options=options,
                has_state=any(len(optimizer.state.get(p, ())) for p in parameters),
                is_expected=expecting.is_expected(),
            )
            if self._wrapping.unsynced_line:
                self._notebook.say("step without reduction", self._wrapping.unsynced_line)
            if self._wrapping.local_lines:
                line = next(iter(self._wrapping.local_lines.values()))
                self._notebook.say("step after no_sync", line)

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_torchs_step():
            return
        self._notebook.step += self._num_running_steps() == 1  # an optimizer may step others
        self._sketches.clear()
        with quietly():
            self._notebook.flush()

    @staticmethod
    def _is_torchs_step() -> bool:
        """Whether torch steps by itself, with learning rate 0, to make an optimizer's state."""
        return any(code.co_name == "_init_optim_state" for code in _running())

    @staticmethod
    def _num_running_steps() -> int:
        """How many optimizers are stepping, each inside the step of the one before."""
        return sum((code.co_filename, code.co_name) == _STEP for code in _running())

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
        cached = self._sketches.get(id(tensor))
        if cached is None or cached[0]() is not tensor or cached[1] != tensor._version:
            cached = self._sketches[id(tensor)] = weakref.ref(tensor), tensor._version, sketch(tensor)
        return cached[2]


def _running() -> Iterator[CodeType]:
    """The code of the functions that are running, from the innermost."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _address(parameter: torch.Tensor) -> int:
    """Where a parameter's elements are: a DTensor may be made of one that an optimizer holds, as in DDP."""
    return getattr(parameter, "_local_tensor", parameter).data_ptr()


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are there; FSDP2 frees those of gathered parameters."""
    return hasattr(tensor, "placements") or tensor.layout != torch.strided or tensor.untyped_storage().size() > 0


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
