"""What a program cannot have on paper: data, other ranks' objects, another node; each refused with its line."""

import subprocess
import sys

import pytest

import worldsize as ws
from worldsize.emulate.worker.torch_operators import TORCHS_OWN

NAMESPACES = """
import torch, torch.distributed.fsdp, torch.distributed.pipelining, torch.distributed.tensor
print(*{name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()})
"""
OPTIONS = {"world_size": 16, "cluster": "h100-ndr-x8", "echo": False}


def saves(torch, dist):
    import io

    torch.save(torch.nn.Linear(3, 3).state_dict(), io.BytesIO())


def pickles(torch, dist):
    import pickle

    pickle.dumps(torch.ones(3))


def checkpoints(torch, dist):
    import torch.distributed.checkpoint as dcp

    dcp.save({"weight": torch.ones(3)}, checkpoint_id="/tmp/never-written")


def reads_by_numpy(torch, dist):
    torch.ones(3, requires_grad=True).detach().cpu().numpy()


def makes_an_array(torch, dist):
    import numpy as np

    np.asarray(torch.ones(3))


def hands_its_memory_on(torch, dist):
    torch.utils.dlpack.to_dlpack(torch.ones(3))


def gathers_objects(torch, dist):
    dist.all_gather_object([None] * dist.get_world_size(), {"loss": 1.0})


def gathers_objects_here(torch, dist):
    dist.gather_object({"loss": 1.0}, [None] * dist.get_world_size())


def gets_an_object(torch, dist):
    dist.broadcast_object_list([None], src=1)


def gets_its_part_of_objects(torch, dist):
    dist.scatter_object_list([None], list(range(dist.get_world_size())), src=0)


def receives_objects(torch, dist):
    dist.recv_object_list([None], src=1)


def counts_over_all_ranks(torch, dist):
    number = torch.tensor([7])
    dist.all_reduce(number)
    number.item()


def takes_the_steps_of_the_last_rank(torch, dist):
    number = torch.tensor(dist.get_rank())
    dist.broadcast(number, dist.get_world_size() - 1)
    int(number)


def computes_in_a_thread(torch, dist):
    import threading

    thread = threading.Thread(target=lambda: torch.ones(3) * 2)
    thread.start()
    thread.join()


def computes_in_a_pool(torch, dist):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda size: torch.ones(size) * 2, range(3)))


def shards_as_before_fsdp2(torch, dist):
    from torch.distributed.fsdp import FullyShardedDataParallel

    FullyShardedDataParallel(torch.nn.Linear(3, 3))


def receives_from_anybody(torch, dist):
    dist.recv(torch.ones(3))


def receives_from_anybody_later(torch, dist):
    dist.irecv(torch.ones(3)).wait()


def run(name):
    import torch
    import torch.distributed as dist

    return globals()[name](torch, dist)


SAVED, READ, FIRST = "no data to be saved or pickled", "no data for NumPy", "name the sender"
OBJECTS = "on paper {} cannot give objects of other ranks"


@pytest.mark.parametrize(
    ("name", "why", "line"),
    [
        ("saves", SAVED, "torch.save("),
        ("pickles", SAVED, "pickle.dumps("),
        ("checkpoints", OBJECTS.format("gather_object"), "dcp.save("),
        ("reads_by_numpy", READ, ".numpy()"),
        ("makes_an_array", READ, "np.asarray("),
        ("hands_its_memory_on", READ, "to_dlpack("),
        ("gathers_objects", OBJECTS.format("all_gather_object"), "dist.all_gather_object("),
        ("gathers_objects_here", OBJECTS.format("gather_object"), "dist.gather_object("),
        ("gets_an_object", OBJECTS.format("broadcast_object_list"), "dist.broadcast_object_list("),
        ("gets_its_part_of_objects", OBJECTS.format("scatter_object_list"), "dist.scatter_object_list("),
        ("receives_objects", OBJECTS.format("recv_object_list"), "dist.recv_object_list("),
        ("receives_from_anybody", FIRST, "dist.recv("),
        ("receives_from_anybody_later", FIRST, "dist.irecv("),
        ("counts_over_all_ranks", "the value of item on a tensor of int64", "number.item()"),
        ("takes_the_steps_of_the_last_rank", "the value of item on a tensor of int64", "int(number)"),
        ("computes_in_a_thread", "another thread computes is not recorded", "threading.Thread("),
        ("computes_in_a_pool", "another thread computes is not recorded", "pool.map("),
    ],
)
def test_it_is_refused_in_words_with_its_line(name, why, line):
    with pytest.raises(ws.RankFailed, match=why) as caught:
        ws.paper(run, name, **OPTIONS)
    assert line in str(caught.value) and "NoData" in str(caught.value)


def test_what_needs_a_gpu_of_its_own_says_what_to_use():
    with pytest.raises(ws.RankFailed, match=r"no GPU for FullyShardedDataParallel: shard with fully_shard"):
        ws.paper(run, "shards_as_before_fsdp2", **OPTIONS)


def knows_its_own_numbers():
    import torch
    import torch.distributed as dist

    alone, given = torch.tensor([7]), torch.tensor([dist.get_rank() + 5])
    dist.all_reduce(alone, group=dist.new_group([0]))
    dist.broadcast(given, 0)
    assert (alone.item(), given.item()) == (7, 5)


def test_what_no_other_rank_changes_is_known():
    ws.paper(knows_its_own_numbers, **OPTIONS)


def fails(rank):
    import torch.distributed as dist

    assert dist.get_rank() != rank, "planted"


def test_a_rank_that_fails_has_its_own_number():
    with pytest.raises(ws.RankFailed, match=r"^Rank 15 of 16 failed with AssertionError: planted") as caught:
        ws.paper(fails, 15, ranks=[3, 15], **OPTIONS)
    assert caught.value.failures[0].rank == 15


def has_addresses():
    import torch

    table, other = torch.ones(4, 4), torch.ones(4, 4)
    assert table.data_ptr() != other.data_ptr()
    assert table[1].data_ptr() - table.data_ptr() == 16 and table.view(16).data_ptr() == table.data_ptr()
    assert torch.empty(0).data_ptr() == 0


def test_storages_are_told_apart_by_their_addresses():
    ws.paper(has_addresses, **OPTIONS)


def copies_and_gives_objects():
    import copy

    import torch
    import torch.distributed as dist

    dist.broadcast_object_list([{"seed": 1}], src=0)
    model = torch.nn.Linear(4, 4)
    average = copy.deepcopy(model)
    for one, other in zip(average.parameters(), model.parameters(), strict=True):
        one.data.mul_(0.9).add_(other.data)
    return copy.copy(average.weight) + model.weight


def test_copies_go_with_their_originals_and_own_objects_are_sent():
    record = ws.paper(copies_and_gives_objects, **OPTIONS).records[0]
    assert [post.op for post in record.posts] == ["broadcast", "broadcast"]
    assert sum(work.name in ("mul_", "add_", "add") for work in record.works) >= 3


def asks_for_the_environment():
    import os

    return os.getenv("LOCAL_WORLD_SIZE")


def asks_for_the_number_of_gpus():
    import torch

    assert torch.cuda.device_count() == 8


def asks_for_its_place():
    import os

    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    init_device_mesh("cuda", (dist.get_world_size(),))
    return os.environ["LOCAL_RANK"], os.environ["RANK"]


@pytest.mark.parametrize("program", [asks_for_the_environment, asks_for_the_number_of_gpus])
def test_a_program_that_asks_for_the_size_of_a_node_is_not_priced_on_other_nodes(program):
    run = ws.paper(program, **OPTIONS)
    assert run.on("a100-hdr-x128").cluster.gpus_per_node == 8
    with pytest.raises(ValueError, match=r"LOCAL_WORLD_SIZE|device_count") as caught:
        run.on("a100-slingshot-x8")
    assert "recorded with 8, and on" in str(caught.value) and "there are 4: record it again" in str(caught.value)


def test_a_program_that_asks_for_its_place_alone_is_priced_anywhere():
    assert ws.paper(asks_for_its_place, **OPTIONS).records[0].asked_at == ""


def twice(num_calls, has_formula):
    import torch
    from torch.utils.flop_counter import register_flop_formula

    @torch.library.custom_op("course::twice", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @double.register_fake
    def _(x):
        return torch.empty_like(x)

    if has_formula:
        register_flop_formula(torch.ops.course.twice)(lambda shape, *_args, **_more: 1e12)
    x = torch.ones(1 << 20)
    for _ in range(num_calls):
        x = torch.ops.course.twice(x)


@pytest.mark.parametrize("has_formula", [False, True])
def test_custom_operators_without_flops_are_named(has_formula):
    run = ws.paper(twice, 3, has_formula, **OPTIONS)
    moved_s = 3 * 2 * 4 * (1 << 20) / run.cluster.gpu.memory_bandwidth_bytes_per_s
    assert run.step_s > moved_s
    assert run.without_flops == ({} if has_formula else {"course::twice": 3})
    assert run.flops() == (3e12 if has_formula else 0)
    assert ("without the flops of custom operators: 3 of course::twice" in repr(run)) != has_formula


def test_of_layers_that_are_not_recorded_they_are_counted_too():
    run = ws.paper(twice, 32, False, depths=(2, 3), **OPTIONS)
    assert run.without_flops == {"course::twice": 32} and "32 of course::twice" in repr(run)


def test_namespaces_of_torch_are_known():
    found = subprocess.run([sys.executable, "-c", NAMESPACES], capture_output=True, text=True, check=True).stdout
    assert "aten" in found and set(found.split()) <= TORCHS_OWN
