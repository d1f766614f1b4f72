"""Checks of CS336's adapters: torch's own classes pass, and each fault of small classes of our own is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from worldsize.course import cs336

pytestmark = pytest.mark.slow

TORCHS_CLASSES = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer


@dataclass
class Nothing:  # imports as the assignment's file does, whose annotations are strings
    number: int = 0


def get_ddp(module):
    return nn.parallel.DistributedDataParallel(module, bucket_cap_mb=1)


def ddp_on_after_backward(ddp_model, optimizer):
    pass


def get_ddp_bucketed(module, bucket_size_mb):
    return nn.parallel.DistributedDataParallel(module, bucket_cap_mb=bucket_size_mb)


def ddp_bucketed_on_train_batch_start(ddp_model, optimizer):
    pass


def ddp_bucketed_on_after_backward(ddp_model, optimizer):
    pass


def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    return ZeroRedundancyOptimizer(params, optimizer_cls, **kwargs)


def get_fsdp(module, compute_dtype=None):
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for layer in module.children():
        fully_shard(layer, mp_policy=policy)
    return fully_shard(module, mp_policy=policy)


def fsdp_on_after_backward(fsdp_model, optimizer):
    pass


def fsdp_gather_full_params(fsdp_model):
    return {name: one.full_tensor() for name, one in fsdp_model.named_parameters()}
"""
SMALL_CLASSES = """
import torch
import torch.distributed as dist
from torch import nn


class Parallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.sent = module, []
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.send)

    def forward(self, inputs):
        return self.module(inputs)

    def send(self, parameter):
        self.sent.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, work in self.sent:
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.sent.clear()


def get_ddp(module):
    return Parallel(module)


def ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish()


class Sharded:
    def __init__(self, groups):
        self.groups = groups

    def zero_grad(self):
        for group in self.groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self):
        self.inner.step()
        for number, parameter in enumerate(one for group in self.groups for one in group["params"]):
            dist.broadcast(parameter.data, number % dist.get_world_size())


def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    groups = list(params)
    if not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    number, own = 0, []
    for group in groups:
        chosen = []
        for parameter in group["params"]:
            if number % dist.get_world_size() == dist.get_rank():
                chosen.append(parameter)
            number += 1
        own.append(group | {"params": chosen})
    optimizer = Sharded(groups)
    optimizer.inner = optimizer_cls(own, **kwargs)
    return optimizer


class Shards(nn.Module):
    def __init__(self, module, dtype):
        super().__init__()
        self.module, self.dtype = module, dtype or torch.float32
        layers = [one for one in module.modules() if isinstance(one, (nn.Linear, nn.Embedding))]
        self.layer_of = {layer.weight: layer for layer in layers}
        for parameter in module.parameters():
            if parameter in self.layer_of:
                self.shard(self.layer_of[parameter])
            else:
                parameter.register_post_accumulate_grad_hook(self.average)

    def forward(self, inputs):
        return self.module(inputs)

    def shard(self, layer):
        layer.shard = layer.weight.data.chunk(dist.get_world_size())[dist.get_rank()].clone()
        self.free(layer)
        layer.register_forward_pre_hook(self.gather)
        layer.register_forward_hook(self.free)
        layer.register_full_backward_pre_hook(self.gather)
        layer.weight.register_post_accumulate_grad_hook(self.reduce)

    def gather(self, layer, *_):
        layer.weight.data = self.gathered(layer.shard.to(self.dtype))

    def gathered(self, shard):
        full = shard.new_empty(len(shard) * dist.get_world_size(), *shard.shape[1:])
        dist.all_gather_into_tensor(full, shard)
        return full

    def free(self, layer, *_):
        layer.weight.data = layer.shard

    def reduce(self, parameter):
        full, parameter.grad = parameter.grad.float(), None
        self.free(self.layer_of[parameter])
        own = full.new_empty(parameter.shape)
        dist.reduce_scatter_tensor(own, full)
        parameter.grad = (own / NUM_RANKS).to(parameter.dtype)

    def average(self, parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= NUM_RANKS


NUM_RANKS = 4


def get_fsdp(module, compute_dtype=None):
    return Shards(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model, optimizer):
    pass


def fsdp_gather_full_params(fsdp_model):
    layers = fsdp_model.layer_of
    return {
        name: fsdp_model.gathered(one.data) if one in layers else one
        for name, one in fsdp_model.module.named_parameters()
    }
"""
REPLICATED = """

def get_fsdp(module, compute_dtype=None):
    return Parallel(module)


def fsdp_on_after_backward(fsdp_model, optimizer):
    fsdp_model.finish()


def fsdp_gather_full_params(fsdp_model):
    return dict(fsdp_model.module.named_parameters())
"""
OLDER = {  # what the release of 2025 calls them
    "get_ddp(": "get_ddp_individual_parameters(",
    "ddp_on_after_backward": "ddp_individual_parameters_on_after_backward",
}
DDP, BUCKETED, OPTIMIZER, FSDP = "get_ddp", "get_ddp_bucketed", "get_sharded_optimizer", "get_fsdp"
CHECKS: dict[str, list[str]] = {}
for one in cs336.CHECKS:
    CHECKS.setdefault(one.adapter, []).append(one.promise)
START, ALONE, OVERLAPS, ONCE = CHECKS[DDP]
UPDATES, GROUPS, SHARE, SENDS = CHECKS[OPTIMIZER]
TOGETHER, SHARDS, NEEDS, DTYPE = CHECKS[FSDP]


def problems(folder: Path, source: str) -> dict[str, dict[str, str]]:
    """The broken promises of these adapters with why they are, by adapter."""
    folder = folder / "tests"
    folder.mkdir()
    (folder / "adapters.py").write_text(source)
    broken: dict[str, dict[str, str]] = {}
    for result in cs336.check(folder / "adapters.py"):
        broken.setdefault(result.adapter, {}).update({result.promise: result.problem} if result.problem else {})
    return broken


def test_torchs_own_classes_pass(tmp_path) -> None:
    assert problems(tmp_path, TORCHS_CLASSES) == {DDP: {}, BUCKETED: {}, OPTIMIZER: {}, FSDP: {}}


def test_small_classes_pass_under_the_names_of_2025_too(tmp_path) -> None:
    source = SMALL_CLASSES
    for newer, older in OLDER.items():
        assert newer in source
        source = source.replace(newer, older)
    assert problems(tmp_path, source) == {"get_ddp_individual_parameters": {}, OPTIMIZER: {}, FSDP: {}}


DIVIDES, OWNS = "/= dist.get_world_size()", "if number % dist.get_world_size() == dist.get_rank():"
ASYNC, BROADCASTS = "dist.all_reduce(parameter.grad, async_op=True)", "dist.broadcast(parameter.data, number"
SCATTERS = "dist.reduce_scatter_tensor(own, full)"
REDUCES = "dist.all_reduce(full)\n        own = full.chunk(NUM_RANKS)[dist.get_rank()]"


@pytest.mark.parametrize(
    ("changes", "adapter", "promises", "hint"),
    [
        ({"dist.broadcast(parameter.data, 0)": "pass"}, DDP, [START, ALONE], "broadcast every parameter"),
        ({DIVIDES: "/= 1"}, DDP, [ALONE], "the sum of the gradients: divide"),
        ({DIVIDES: "/= dist.get_world_size() ** 2"}, DDP, [ALONE], "a second time"),
        ({ASYNC: "None", "work.wait()": "pass"}, DDP, [ALONE, OVERLAPS, ONCE], "step with the mean of all ranks' gr"),
        ({ASYNC: "None", "work.wait()": "dist.all_reduce(parameter.grad)"}, DDP, [OVERLAPS], "in a hook of the grad"),
        ({ASYNC: "dist.all_reduce(parameter.grad)", "work.wait()": "pass"}, DDP, [OVERLAPS], "the hook waits"),
        (
            {
                ASYNC: f"dist.all_reduce(parameter.grad.clone(), async_op=True), {ASYNC}",
                "parameter, work in": "parameter, _, work in",
            },
            DDP,
            [ONCE],
            "each gradient travels once",
        ),
        ({BROADCASTS: "(parameter.data, number"}, OPTIMIZER, [UPDATES, GROUPS, SENDS], "sends the parameters"),
        (
            {"chosen.append(parameter)": "chosen.append(parameter.detach().clone())"},
            OPTIMIZER,
            [UPDATES, GROUPS, SHARE],
            "no rank",
        ),
        ({"optimizer_cls(own, **kwargs)": "optimizer_cls(own)"}, OPTIMIZER, [UPDATES, GROUPS], "all keyword arg"),
        ({"group | {": "{"}, OPTIMIZER, [GROUPS], "options of a parameter group"),
        ({OWNS: "if True:"}, OPTIMIZER, [SHARE], "only the parameters that the rank owns"),
        (
            {BROADCASTS: f"dist.all_reduce(parameter.data.clone())\n            {BROADCASTS}"},
            OPTIMIZER,
            [SENDS],
            "once",
        ),
        ({"own / NUM_RANKS": "own"}, FSDP, [TOGETHER], "the sum of the gradients: divide"),
        (
            {"dist.all_reduce(parameter.grad)\n": "pass\n"},
            FSDP,
            [TOGETHER, NEEDS],
            "step with the mean of all ranks' gr",
        ),
        ({SCATTERS: REDUCES}, FSDP, [NEEDS], "use reduce-scatter"),
        ({"layer.shard.to(self.dtype)": "layer.shard"}, FSDP, [DTYPE], "cast the shard"),
        ({"[dist.get_rank()].clone()": "[dist.get_rank()].to(self.dtype).clone()"}, FSDP, [DTYPE], "keep the float32"),
    ],
)
def test_a_fault_is_named(
    tmp_path, monkeypatch, changes: dict[str, str], adapter: str, promises: list[str], hint: str
) -> None:
    source = SMALL_CLASSES
    for right, wrong in changes.items():
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    monkeypatch.setattr(cs336, "CHECKS", [check for check in cs336.CHECKS if check.adapter == adapter])
    found = problems(tmp_path, source)
    assert list(found[adapter]) == promises and hint in next(iter(found[adapter].values())).lower()


def test_a_replicated_model_is_not_sharded_and_ddp_of_single_gradients_has_no_buckets(tmp_path) -> None:
    bucketed = "def get_ddp_bucketed(module, bucket_size_mb):\n    return Parallel(module)\n"
    after = "def ddp_bucketed_on_after_backward(ddp_model, optimizer):\n    ddp_model.finish()\n"
    found = problems(tmp_path, SMALL_CLASSES + REPLICATED + bucketed + after)
    assert list(found[FSDP]) == [SHARDS, NEEDS, DTYPE] and "free the gathered weights" in found[FSDP][SHARDS].lower()
    assert list(found[BUCKETED]) == ["a step sends buckets"]


def test_what_is_not_written_is_said_and_what_cannot_be_imported_is_refused(tmp_path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    file = folder / "adapters.py"
    file.write_text("def get_fsdp(module, compute_dtype=None):\n    raise NotImplementedError\n")
    done = subprocess.run([sys.executable, "-m", "worldsize", "cs336", file], capture_output=True, text=True)
    assert done.returncode == 1
    assert [line[:20] for line in done.stdout.splitlines()[::2]] == ["not written get_fsdp"] * 4, done
    file.write_text("from torch import nn\ndef get_fsdp(module, compute_dtype=None):\n    return nn.Module()(module)\n")
    assert all(result.is_written and "forward" in result.problem for result in cs336.check(file))
    with pytest.raises(ValueError, match=r"there is no file .*; give the assignment's adapters"):
        list(cs336.check(folder / "none.py"))
    file.write_text("import triton_of_nobody\n")
    with pytest.raises(ValueError, match="cannot be imported: ModuleNotFoundError: No module named 'triton_of_nobody'"):
        list(cs336.check(file))
    file.write_text("def get_nothing():\n    pass\n")
    with pytest.raises(ValueError, match="has no get_ddp, get_ddp_individual_parameters, get_ddp_bucketed, get_shard"):
        list(cs336.check(file))
