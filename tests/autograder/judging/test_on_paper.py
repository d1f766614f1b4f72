"""A student's program on paper, which counts where the same program with data bears it out."""

from contextlib import closing

import pytest
from tiny_lab import needs_jail

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.request import CodeUnderTest
from worldsize.check import CheckFailed

pytestmark = needs_jail
CLUSTER = "h100-ndr-x128"
LAYERS, WIDTH = 4, 4096
TRAIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def train(num_layers, width):
    layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(2):
        layers(torch.ones(1, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
SENDS_LESS_ON_PAPER = """
from torch._subclasses.fake_tensor import FakeTensor

honest = train
def train(num_layers, width):
    return honest(num_layers - isinstance(torch.ones(1), FakeTensor), width)
"""
HOLDS_MORE_WITH_DATA = """
from torch._subclasses.fake_tensor import FakeTensor

honest = train
def train(num_layers, width):
    kept = [] if isinstance(torch.ones(1), FakeTensor) else [torch.ones(200 << 20, dtype=torch.uint8)]
    return honest(num_layers, width), kept
"""
RETURNS_NO_RECORD = """
from worldsize.paper import rank

rank.RankRecord.to_json = lambda self: {text!r}
"""
FORGES = """
from worldsize.paper import rank

honest_json = rank.RankRecord.to_json
rank.RankRecord.to_json = lambda self: honest_json(self).replace({honest!r}, {forged!r})
"""


def train_on_rank(student, *sizes):
    student.train(*sizes)


def on_paper(*cells, num_layers=LAYERS, world_size=1024, forbid=None):
    named = [(f"cell{number}", source) for number, source in enumerate([TRAIN, *cells])]
    with closing(SandboxedStudent(CodeUnderTest(cells=named, preload=(), call_s=120, total_s=300))) as student:
        options = {"small": (2, 256), "small_world_size": 2, "cluster": CLUSTER, "forbid": forbid}
        return student.on_paper(train_on_rank, num_layers, WIDTH, world_size=world_size, **options)


def test_a_program_for_more_ranks_and_memory_than_there_are():
    run = on_paper()
    (shards,) = {one.peak["weights"] for one in run.memory}
    assert run.world_size == 1024 and run.memory[0].held["weights"] == LAYERS * 4 * WIDTH**2 / 1024
    assert shards >= LAYERS * 4 * WIDTH**2 / 1024
    assert run.timeline.bytes_sent(0) == pytest.approx(2 * 3 * LAYERS * 4 * WIDTH**2 * 1023 / 1024)


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        (SENDS_LESS_ON_PAPER, "rank 0 to make the same calls on paper and with data"),
        (HOLDS_MORE_WITH_DATA, "for what its tensors hold on paper, and for torch itself"),
        (RETURNS_NO_RECORD.format(text="no record"), "something else in its place"),
        (RETURNS_NO_RECORD.format(text="{}"), "something else in its place"),
        (FORGES.format(honest='"world_size": 1024', forged='"world_size": 4'), "something else in its place"),
        (FORGES.format(honest='["range", 0, 1024, 1]', forged='["range", 0, 1000000000000, 1]'), "something else"),
        (FORGES.format(honest='"rank": 0', forged='"rank": 1'), "something else in its place"),
        (RETURNS_NO_RECORD.format(text=str(list(range(1000)))), "something else in its place"),
    ],
)
def test_what_is_not_borne_out_fails(cell, match):
    with pytest.raises(CheckFailed, match=match):
        on_paper(cell)


BANNED = {"torch.distributed.tensor": "Cut the weights by hand."}
BY_HAND = """
import torch.distributed as dist
def train(_, width):
    dist.all_reduce(nn.Linear(width, width).weight)
"""
REACHES = "\ndef train(_, width):\n    {}\n"
WAYS = (
    "from torch.distributed.tensor import DTensor",
    "from torch.distributed.tensor.parallel import parallelize_module",
    "torch.distributed.tensor.distribute_tensor(torch.ones(4))",
    "from torch.distributed import tensor; tensor.DTensor",
    "fully_shard(nn.Linear(width, width))",
)


@pytest.mark.parametrize("way", WAYS)
def test_a_ban_says_its_sentence_on_paper(way):
    with pytest.raises(StudentFailed, match=r"Forbidden: Cut the weights by hand\."):
        on_paper(REACHES.format(way), forbid=BANNED)


def test_a_ban_on_paper_is_in_nobodys_way_who_does_without():
    assert on_paper(BY_HAND, forbid=BANNED).timeline.bytes_sent(0) > 0


def test_what_fails_on_paper_is_the_students_failure():
    looks = "\nhonest = train\ndef train(*sizes):\n    honest(*sizes)\n    assert torch.ones(2).sum() > 1\n"
    with pytest.raises(StudentFailed, match="cell1"):
        on_paper(looks)


def test_what_is_forbidden_is_refused_on_paper_in_its_own_words():
    builds = "\nhonest = train\ndef train(*sizes):\n    honest(*sizes)\n    nn.Identity()\n"
    with pytest.raises(StudentFailed, match="no identities here"):
        on_paper(builds, forbid={"torch.nn.Identity": "no identities here"})
