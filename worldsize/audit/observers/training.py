"""Observer of training: forward passes, backward passes and optimizer steps."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
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
_MOST_EVALUATIONS = 1000  # forward passes in evaluation mode that are noted
_STEP = (torch.optim.Optimizer.profile_hook_step.__code__.co_filename, "wrapper")  # calls the hooks of a step


class TrainingObserver:
    """An observer of what enters models, which gradients come out, and what optimizers hold before each step."""

    def __init__(self, notebook: Notebook, names: Names, wrapping: WrappingObserver, every: int) -> None:
        self._notebook, self._names, self._wrapping, self._every = notebook, names, wrapping, every
        self._depth = 0
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # where an optimizer was made, where torch's generator had been seeded, and the defaults
        self._made: weakref.WeakKeyDictionary[Any, tuple[Line | None, Any, dict[str, Any]]]
        self._made = weakref.WeakKeyDictionary()
        self._num_steps: dict[int, int] = {}
        # address of memory -> id of a tensor in it -> version, sketch
        self._sketches: defaultdict[int, dict[int, tuple[weakref.ref[torch.Tensor], int, list[float]]]]
        self._sketches = defaultdict(dict)
        self._held: dict[int, tuple[str, str]] = {}  # address of memory -> what of it is observed, and its name
        self._writers: set[tuple[int, str, Line | None]] = set()  # lines whose writes have been noted, by step
        self._is_torchs_turn = False  # a backward pass or a step is running
        self._num_evaluations = 0
        self._sent: set[str] = set()  # names of gradients that were sent since the last backward pass began
        self._has_drawn = False  # whether a dropout of this forward pass has been noted
        self._hidden: list[tuple[Any, str, Line | None]] = []  # graph nodes whose values a collective has changed
        self._perturbed: set[int] = set()
        self._hooked: set[int] = set()  # ids of parameters whose gradients are noted before hooks see them
        self._seeded: tuple[Line | None, int] | None = None  # where torch's generator was last seeded, and with what
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
        replace(stack, torch.Tensor, "register_post_accumulate_grad_hook", self._wrap_hook)
        replace(stack, torch.Tensor, "register_hook", self._wrap_hook)

    @property
    def is_due(self) -> bool:
        """Whether this step is one of those in which tensors are sketched."""
        return (self._notebook.step - 1) % self._every == 0

    def num_steps_of(self, optimizer: Any) -> int:
        """How many steps an optimizer, or one that shares its groups of parameters, has taken."""
        groups = {id(group) for group in getattr(optimizer, "param_groups", ())}
        return sum(
            self._num_steps[number]
            for one, number in self._optimizers.items()
            if one is optimizer or groups & {id(group) for group in one.param_groups}
        )

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

    def written(self, tensors: Sequence[torch.Tensor], caller: FrameType) -> None:
        """Forget the sketches of what an operator has written into, and note who writes outside steps.

        Neither an operator on lists nor one on `.data` gives a tensor a new version here.
        """
        for tensor in tensors:
            address = address_of(tensor)
            self._sketches.pop(address, None)
            if address not in self._held or (self._is_torchs_turn and "/torch/" in caller.f_code.co_filename):
                continue
            (role, name), line = self._held[address], line_of(caller)
            if line is not None and (self._notebook.step, role, line) not in self._writers:
                self._writers.add((self._notebook.step, role, line))
                self._notebook.say("written", line, role=role, name=name)

    def _hold(self) -> None:
        """Observe who writes into weights, their gradients and buffers."""
        self._held = {address_of(one): ("buffer", name) for name, one in self._names.buffers()}
        for name, one in self._names.parameters():
            self._held[address_of(one)] = "weight", name
            if one.grad is not None:
                self._held[address_of(one.grad)] = "gradient", name
        self._held.pop(0, None)

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
            if self._depth == 1 and torch.is_grad_enabled() and module.training:
                self._note_input(module, args)
            elif self._depth == 1 and not module.training and self._num_evaluations < _MOST_EVALUATIONS:
                self._num_evaluations += 1
                self._notebook.say("evaluation", inputs=[sketch(one) for one in _inputs(args)])
            if module._buffers and torch.is_grad_enabled() and module.training and self.is_due:
                self._buffers("buffers", module)

    def _wrap_seed(self, seed: Callable[..., Any]) -> Callable[..., Any]:
        def seeded(*args: Any, **kwargs: Any) -> Any:
            generator = seed(*args, **kwargs)
            self._seeded = line_of(sys._getframe(1)), torch.initial_seed()
            return generator

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
        inputs = _inputs(args)
        draws = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p and m.training for m in module.modules())
        has_weights = next(module.parameters(), None) is not None  # else it is a loss
        if inputs and self.is_due and (draws or has_weights):
            state = torch.get_rng_state()
            self._notebook.say(
                "forward",
                model=type(module).__name__,
                inputs=[sketch(one) for one in inputs],
                generator=sketch(state),
                seeded=as_list(self._seeded[0]) if self._seeded else None,
                draws=draws,
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
                self._is_torchs_turn = True
            try:
                backward(tensors, *args, **kwargs)
            finally:
                self._is_torchs_turn = False
            with quietly():
                if self.is_due:
                    self._gradients("gradients after backward", leaves)
                    self._hold()

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

    def _wrap_hook(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """Let a parameter's hooks follow one that notes its gradient, which they may reduce."""

        def registered(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            line = line_of(sys._getframe(1))

            def observed(given: torch.Tensor) -> None:
                with quietly():  # it is given the parameter, which has its gradient, or what is added to that
                    gradient = tensor.grad if given is tensor else given
                    name = self._names.of(tensor)
                    if name and gradient is not None and self.is_due and (given is tensor or tensor.grad is None):
                        self._notebook.say("gradients before hook", line, of={name: sketch(gradient)}, is_ddps=False)

            if isinstance(tensor, nn.Parameter) and tensor.requires_grad and id(tensor) not in self._hooked:
                self._hooked.add(id(tensor))
                register(tensor, observed)
            return register(tensor, hook)

        return registered

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
            self._made[optimizer] = line_of(sys._getframe(1)), self._seeded, dict(optimizer.defaults)

        return __init__

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._is_torchs_turn = True
        if self._is_torchs_step():
            return
        with quietly():
            number = self._optimizers.get(optimizer)
            if number is None:
                number = self._optimizers[optimizer] = len(self._num_steps)
                line, seeded, _ = self._made.get(optimizer, (None, None, {}))
                seed = {"seeded": as_list(seeded[0]), "seed": seeded[1]} if seeded else {"seeded": None}
                self._notebook.say("optimizer", line, number=number, **seed)
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
                defaults=self._changed_defaults(optimizer),
                has_state=any(len(optimizer.state.get(p, ())) for p in parameters),
                is_expected=expecting.is_expected(),
            )
            if self._wrapping.unsynced_line:
                self._notebook.say("step without reduction", self._wrapping.unsynced_line)
            if self._wrapping.local_lines:
                line = next(iter(self._wrapping.local_lines.values()))
                self._notebook.say("step after no_sync", line)

    def _changed_defaults(self, optimizer: Any) -> dict[str, float]:
        """The defaults that have been changed since an optimizer was made, which is too late for its steps."""
        made = self._made.get(optimizer, (None, None, optimizer.defaults))[2]
        now = {name: value for name, value in optimizer.defaults.items() if isinstance(value, int | float)}
        return {name: value for name, value in now.items() if value != made.get(name)}

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._is_torchs_turn = False
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
        known = self._sketches[address_of(tensor)]
        cached = known.get(id(tensor))
        if cached is None or cached[0]() is not tensor or cached[1] != tensor._version:
            cached = known[id(tensor)] = weakref.ref(tensor), tensor._version, sketch(tensor)
        return cached[2]


def _inputs(args: Any) -> list[torch.Tensor]:
    """The tensors that enter a module."""
    return [one for one in tree_leaves(args) if isinstance(one, torch.Tensor) and one.numel() > 1]


def _running() -> Iterator[CodeType]:
    """The code of the functions that are running, from the innermost."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _address(parameter: torch.Tensor) -> int:
    """Where a parameter's elements are: a DTensor may be made of one that an optimizer holds, as in DDP."""
    return getattr(parameter, "_local_tensor", parameter).data_ptr()


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins, which its views share; 0 for one without memory of its own."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return getattr(tensor, "_local_tensor", tensor).untyped_storage().data_ptr()
    return 0


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
