"""Calls that Gloo takes and that no page of torch's documentation shows: each does the same on an emulated cluster."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

import worldsize as ws

WORLD = 3


def emulated(fn, *args, world_size=WORLD):
    return ws.run(fn, *args, world_size=world_size, cluster="dgx-h100", echo=False, timeout_s=60).values


def gloo(fn, *args, world_size=WORLD):
    return ws.run(fn, *args, world_size=world_size, echo=False, timeout_s=60).values


def gathered_together():
    """All ranks' lists of three tensors, one of them empty."""
    rank = dist.get_rank()
    mine = [torch.full((2, 2), 1.0 * rank), torch.full((1,), 10.0 * rank), torch.empty(0)]
    lists = [[torch.empty_like(one) for one in mine] for _ in range(WORLD)]
    dist.all_gather_coalesced(lists, mine)
    return [[one.tolist() for one in of_rank] for of_rank in lists]


def test_lists_of_tensors_are_gathered_as_on_gloo():
    assert emulated(gathered_together) == gloo(gathered_together)


def summed_sparse():
    """Sums of sparse tensors: of different rows on every rank, of values with a shape, and with an empty one."""
    rank = dist.get_rank()
    rows = torch.sparse_coo_tensor([[rank, 2]], [1.0, 10.0], (4,))
    blocks = torch.sparse_coo_tensor([[rank]], torch.full((1, 2), 1.0 + rank), (3, 2), dtype=torch.float64)
    few = torch.sparse_coo_tensor([[0], [1]], [5.0], (2, 2)) if rank else torch.zeros(2, 2).to_sparse()
    several = [rows, blocks, few]
    for tensor in several:
        dist.all_reduce(tensor)
    return [one.to_dense() for one in several]


def test_sparse_tensors_are_summed_as_on_gloo():
    for mine, on_gloo in zip(emulated(summed_sparse), gloo(summed_sparse), strict=True):
        assert all(torch.equal(*pair) for pair in zip(mine, on_gloo, strict=True))


def trained_with_sparse_gradients():
    """Weights of an embedding after a step of DDP in which each rank has seen other words."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(6, 4, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.tensor([dist.get_rank(), 5])).square().sum().backward()
    assert model.module.weight.grad.is_sparse
    optimizer.step()
    return model.module.weight.detach()


def test_ddp_averages_sparse_gradients_as_on_gloo():
    for mine, on_gloo in zip(emulated(trained_with_sparse_gradients), gloo(trained_with_sparse_gradients), strict=True):
        assert torch.equal(mine, on_gloo)


def called_on_the_group():
    """What the group's own methods give with a tensor, a root and a reduction in place of torch's options."""
    group, rank = dist.group.WORLD, dist.get_rank()
    tensor, total, largest, product = (torch.full((2,), 1.0 + rank) for _ in range(4))
    whole, parts = [torch.zeros(2) for _ in range(WORLD)], [torch.full((2,), 1.0 + rank + i) for i in range(WORLD)]
    gathered = [torch.zeros(2) for _ in range(WORLD)]
    mine, sums = torch.zeros(2), torch.zeros(2)
    works = [
        group.broadcast(tensor, root=1),
        group.allreduce(total),
        group.allreduce([largest], dist.ReduceOp.MAX),
        group.reduce(product, root=0, op=dist.ReduceOp.PRODUCT),
        group.allgather(whole, torch.full((2,), 1.0 * rank)),
        group.gather(gathered if rank == 2 else [], torch.full((2,), 1.0 * rank), root=2),
        group.scatter(mine, parts if rank == 0 else [], root=0),
        group.reduce_scatter(sums, parts, dist.ReduceOp.SUM),
        group.barrier(timeout=timedelta(seconds=30)),
    ]
    for work in works:
        work.wait()
    found = [tensor, total, largest, *whole, *gathered, mine, sums, *([product] if rank == 0 else [])]
    return [one.tolist() for one in found]


def test_a_groups_own_methods_take_what_they_take_on_gloo():
    assert emulated(called_on_the_group) == gloo(called_on_the_group)


def whose_it_was():
    if dist.get_rank() == 0:
        works = [dist.irecv(torch.empty(1)), dist.irecv(torch.empty(1), src=1)]
        for work in works:
            work.wait()
        return [work.source_rank() for work in works]
    if dist.get_rank() == 1:
        for _ in range(2):
            dist.send(torch.ones(1), dst=0)
    return None


def test_a_receive_tells_whose_message_it_was():
    assert emulated(whose_it_was)[0] == gloo(whose_it_was)[0] == [1, 1]


def refused(name):
    """The sentence with which a call is refused on every rank."""
    group, one = dist.group.WORLD, torch.ones(2)
    calls = {
        "sparse": lambda: dist.broadcast(torch.eye(2).to_sparse(), src=0),
        "largest": lambda: dist.all_reduce(torch.eye(2).to_sparse(), op=dist.ReduceOp.MAX),
        "nested": lambda: dist.all_reduce(torch.nested.nested_tensor([one, one])),
        "quantized": lambda: dist.all_reduce(torch.quantize_per_tensor(one, 0.1, 0, torch.qint8)),
        "meta": lambda: dist.all_reduce(torch.ones(2, device="meta")),
        "uint16": lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16)),
        "pairs": lambda: group.all_gather_single_coalesced([torch.zeros(6)], [one, one]),
        "dtensor": lambda: dist.all_reduce(distribute_tensor(one, init_device_mesh("cpu", (WORLD,)))),
        "lists": lambda: dist.all_gather_coalesced([[one]] * WORLD, [one, one]),
    }
    try:
        calls[name]()
    except ValueError as error:
        return str(error)
    return "nothing refused it"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sparse", "broadcast got a sparse tensor, which an emulated cluster does not send: use to_dense()"),
        ("largest", "sparse tensors can only be summed, one in a call, as on Gloo"),
        ("nested", "all_reduce got a nested tensor, which an emulated cluster does not send"),
        ("quantized", "all_reduce got a quantized tensor, which an emulated cluster does not send"),
        ("meta", "all_reduce got a meta tensor, which an emulated cluster does not send: it has no data"),
        ("dtensor", "all_reduce got a DTensor tensor, which an emulated cluster does not send"),
        ("uint16", "torch cannot reduce torch.uint16: convert to int32 or int64 first"),
        ("pairs", "all_gather_single got 2 inputs and 1 outputs: give one output for each input"),
        ("lists", "it needs one list for each of 3 ranks, each of 2 tensors as in its input"),
    ],
)
def test_what_no_emulated_cluster_sends_is_refused_in_a_sentence(name, sentence):
    assert all(sentence in given for given in emulated(refused, name))


def gathered_of_different_sizes():
    rank = dist.get_rank()
    wholes = [torch.zeros(1 + i) for i in range(WORLD)]
    dist.all_gather(wholes, torch.full((1 + rank,), 1.0 * rank))
    return [one.tolist() for one in wholes]


def test_tensors_of_different_sizes_are_gathered_as_on_nccl():
    assert emulated(gathered_of_different_sizes) == [[[0.0], [1.0] * 2, [2.0] * 3]] * WORLD


def sent_to_itself():
    try:
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(1), dist.get_rank())])
    except ValueError as error:
        return str(error)
    return "nothing refused it"


def test_a_message_to_the_rank_itself_is_refused_in_a_sentence():
    for rank, said in enumerate(emulated(sent_to_itself)):
        assert said.startswith(f"rank {rank} receives from itself, which an emulated cluster does not do")


def gathered_while_under_way():
    """What is gathered of a functional collective's result for which nobody has waited."""
    sums = all_reduce(torch.full((3,), 1.0 + dist.get_rank()), "sum", dist.group.WORLD)
    gathered = [torch.zeros(3) for _ in range(WORLD)]
    dist.all_gather(gathered, sums)
    return [one.tolist() for one in gathered]


def test_the_result_of_a_functional_collective_is_waited_for_before_it_is_sent():
    assert emulated(gathered_while_under_way) == gloo(gathered_while_under_way)
