"""`allow` on real sockets: a program is kept to the operations that it may be built from, whichever way it takes."""

import datetime

import pytest
import torch
import torch.distributed as dist
from rings import ring_all_reduce

import worldsize as ws
from worldsize.launch import RankFailed
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch

MESSAGES = {"send", "recv"}


def real(fn, *args, world_size=2, allow=MESSAGES, **options):
    return ws.run(fn, *args, world_size=world_size, allow=allow, echo=False, timeout_s=60, **options)


def pass_on():
    """Each rank's number, passed to the next by every function that sends or receives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, got = torch.full((3,), float(rank)), [torch.zeros(3) for _ in range(4)]
    after, before = (rank + 1) % size, (rank - 1) % size
    works = [dist.irecv(got[0], before), dist.isend(mine, after)]
    works += dist.batch_isend_irecv([dist.P2POp(dist.irecv, got[1], before), dist.P2POp(dist.isend, mine, after)])
    for work in works:
        work.wait()
    pair = dist.new_group([0, 1], backend="gloo")
    for sender in (0, 1):
        if rank == sender:
            dist.send(mine, 1 - rank, group=pair, tag=7)
        else:
            dist.recv(got[2], 1 - rank, group=pair, tag=7)
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(got[3])
    return [float(one[0]) for one in got], dist.get_backend(), dist.get_backend(pair)


def test_allowed_operations_work_in_every_group():
    assert real(pass_on).values == [([1.0, 1.0, 1.0, 0.0], "gloo", "gloo"), ([0.0, 0.0, 0.0, 0.0], "gloo", "gloo")]


def test_a_ring_by_hand_runs_over_the_messages_that_it_may_send():
    assert real(ring_all_reduce, 48 * 1024, world_size=3).values == [True] * 3


def by_gloo_again():
    store = dist.HashStore()
    return dist.distributed_c10d.ProcessGroupGloo(store, 0, 1, datetime.timedelta(seconds=5)).allreduce([torch.ones(2)])


def by_the_native_class():
    return torch._C._distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=5))


def by_ddp():
    """The gradients of one weight, averaged by torch's own DDP."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.full((1, 1), float(dist.get_rank()))).sum().backward()
    return [float(one.grad) for one in model.parameters()]


def by_functional_collectives():
    from torch.distributed import _functional_collectives as functional

    return functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 0


WAYS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(2)),
    "asynchronous": lambda: dist.all_reduce(torch.ones(2), async_op=True),
    "a new group": lambda: dist.all_reduce(torch.ones(2), group=dist.new_group(backend="gloo")),
    "all_gather_object": lambda: dist.all_gather_object([None, None], "x"),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(2)),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2)),
    "barrier": lambda: dist.barrier(),
    "monitored_barrier": lambda: dist.monitored_barrier(),
    "the group's method": lambda: dist.group.WORLD.allreduce([torch.ones(2)]),
    "another Gloo": by_gloo_again,
    "torch's own class": by_the_native_class,
    "DDP": by_ddp,
    "functional collectives": by_functional_collectives,
}


@pytest.mark.parametrize("way", WAYS)
def test_other_operations_are_refused_whichever_way_they_are_called(way):
    with pytest.raises(RankFailed, match=r"Forbidden: \w+ is not allowed here: .*recv"):
        real(WAYS[way])


def test_what_torch_itself_calls_is_carried_out_where_it_is_allowed():
    allow = {"all_reduce", "all_gather", "broadcast"}
    assert real(by_ddp, allow=allow).values == [[0.5], [0.5]]


def test_operators_of_torch_find_no_way_past_the_group():
    def by_operators():
        operators = vars(torch)["ops"]._c10d_functional  # written otherwise, all operators would be pickled
        return operators.wait_tensor(operators.all_reduce(torch.ones(2), "sum", dist.group.WORLD.group_name))

    with pytest.raises(RankFailed, match="Forbidden: all_reduce is not allowed here"):
        real(by_operators)


def test_allow_holds_under_torchrun():
    with pytest.raises(RankFailed, match="Forbidden: all_reduce is not allowed here"):
        options = {"world_size": 2, "launcher": "torchrun", "echo": False, "allow": MESSAGES}
        launch(Spec(lambda: dist.all_reduce(torch.ones(2)), **options))


def test_without_allow_gloo_is_torchs_own():
    (name,) = ws.run(lambda: type(dist.group.WORLD).__name__, world_size=1, echo=False).values
    assert name == "ProcessGroup"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow": {"sends"}}, "there is no operation sends; known are all_gather"),
        ({"allow": {"send"}, "backend": "nccl"}, "allow works only with Gloo or on an emulated cluster"),
    ],
)
def test_what_cannot_hold_is_refused_before_anything_starts(options, words):
    with pytest.raises(ValueError, match=words):
        real(pass_on, **options)
