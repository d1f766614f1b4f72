"""Groups of torch's own kinds on an emulated rank: each is an emulated one, or is refused."""

import datetime
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

import worldsize as ws
from worldsize import emulate
from worldsize.launch import RankFailed

WORLD = 4


def emulated(fn, *args, world_size=WORLD, **options):
    return ws.run(fn, *args, world_size=world_size, cluster="dgx-h100", echo=False, timeout_s=60, **options)


def groups_by_every_way():
    """A group of all ranks or of two, by each way in which a program may name a backend."""
    halves = [[0, 1], [2, 3]]
    yield dist.new_group(backend="gloo")
    yield dist.new_group(backend="nccl")
    yield dist.new_group(backend="mpi")
    yield dist.new_group(backend="ucc")
    yield dist.new_group(backend="fake")
    yield dist.new_group(backend="cpu:gloo,cuda:nccl")
    yield dist.new_group(backend="gloo", use_local_synchronization=True, group_desc="control")
    yield dist.new_subgroups(2, backend="gloo")[0]
    yield dist.new_subgroups_by_enumeration(halves, backend="nccl")[0]
    overrides = {"rows": "gloo"}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"), backend_override=overrides)
    yield mesh.get_group("rows")
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=ws_rank(), world_size=WORLD)
    yield dist.group.WORLD
    yield dist.new_group(halves[ws_rank() // 2], use_local_synchronization=True)  # torch gives the first names again


def ws_rank():
    import os

    return int(os.environ["RANK"])


def sums_in_each():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [sum_in(group) for group in groups_by_every_way()]


def sum_in(group):
    tensor = torch.ones(256)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0]), dist.get_backend(group), type(group).__name__


def test_every_group_is_an_emulated_one_and_its_messages_are_priced():
    run = emulated(sums_in_each)
    sizes = [4.0] * 7 + [2.0] * 3 + [4.0, 2.0]
    names = ["gloo", "nccl", "mpi", "ucc", "fake", "cpu:gloo,cuda:nccl", "gloo", "gloo", "nccl", "gloo", "gloo", "gloo"]
    expected = [(size, name, "EmulatedGroup") for size, name in zip(sizes, names, strict=True)]
    assert run.values == [expected] * WORLD
    calls = {(event.group, event.sequence) for event in run.timeline.of(0) if event.name == "all_reduce"}
    assert len(calls) == len(sizes)
    assert run.timeline.bytes_sent(0) == pytest.approx(sum(1024 * 2 * (size - 1) / size for size in sizes))


def test_a_group_that_no_program_has_named_is_emulated():
    assert (
        emulated(lambda: (dist.get_backend(), dist.get_backend(dist.new_group())), world_size=2).values
        == [("emulated", "emulated")] * 2
    )


def test_allow_holds_in_a_group_of_another_backend():
    with pytest.raises(RankFailed, match="Forbidden: all_reduce is not allowed here"):
        emulated(lambda: sum_in(dist.new_group(backend="gloo")), allow={"send"})


def make_natively():
    """The errors of the ways to a group of torch's own, past the cluster."""
    from torch.distributed import _dist2, rpc

    soon, store = datetime.timedelta(seconds=5), dist.HashStore()

    class Hidden(dist.ProcessGroupGloo):
        pass

    ways = [
        lambda: dist.ProcessGroupGloo(store, 0, 1, soon),
        lambda: dist.distributed_c10d.ProcessGroupGloo(store, 0, 1, soon),
        lambda: torch._C._distributed_c10d.ProcessGroupGloo(store, 0, 1),
        lambda: Hidden(store, 0, 1, soon),
        lambda: _dist2._gloo_factory(store, 0, 1, soon, torch.device("cpu")),
        lambda: rpc.TensorPipeAgent(store, "me", 0, 1, rpc.TensorPipeRpcBackendOptions(), {}, []),
    ]
    return [error_of(way) for way in ways]


def error_of(way):
    try:
        way()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def test_a_group_of_torchs_own_is_refused_with_what_to_do():
    (errors,) = emulated(make_natively, world_size=1).values
    *of_groups, of_rpc = errors
    for error in of_groups:
        assert error.startswith("Forbidden: ") and "make the group with dist.new_group()" in error
    assert "ProcessGroupGloo would bypass the emulated cluster" in errors[0]
    assert "torch's rpc would bypass" in of_rpc and "use messages and collectives" in of_rpc


def join_as_another():
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_a_rank_cannot_join_as_another():
    with pytest.raises(RankFailed, match=r"this is rank 0 of 2 .* cannot join as rank 0 of 1; for fewer ranks"):
        emulated(join_as_another, world_size=2)


def test_a_plain_barrier_does_not_pass_a_monitored_one():
    def one_calls_another():
        (dist.barrier if dist.get_rank() == 1 else dist.monitored_barrier)()

    sentence = (
        r"Collectives do not match: Rank 1 calls collective 1, barrier, "
        r"ranks 0, 2 and 3 call collective 1, monitored_barrier"
    )
    with pytest.raises(ws.RunTimeout, match=sentence):
        emulated(one_calls_another)


def errors_of_a_monitored_barrier(late_s, wait_all_ranks=False):
    """Each rank's error and when it came; each rank begins after its number of seconds."""
    emulate.spend(late_s[dist.get_rank()])
    if late_s[dist.get_rank()] == NEVER:
        return "", NEVER
    try:
        dist.monitored_barrier(timeout=SOON, wait_all_ranks=wait_all_ranks)
    except RuntimeError as error:
        return str(error), emulate.elapsed()
    return "", emulate.elapsed()


NEVER = 1e6
SOON = datetime.timedelta(seconds=3)


def test_the_time_of_a_monitored_barrier_is_its_first_ranks():
    run = emulated(errors_of_a_monitored_barrier, [5.0, 1.0, 7.9, 0.0])
    assert [error for error, _ in run.values] == [""] * WORLD
    assert len({end_s for _, end_s in run.values}) == 1 and run.values[0][1] == pytest.approx(7.9, rel=1e-3)


@pytest.mark.parametrize(
    ("late_s", "wait_all_ranks", "who"),
    [
        ([1.0, 0.0, 4.1, 4.2], False, "Rank 2"),
        ([1.0, 0.0, 4.1, 4.2], True, "Ranks 2, 3"),
        ([1.0, NEVER, 2.0, 0.0], True, "Ranks 1"),
    ],
)
def test_a_monitored_barrier_names_the_late_and_fails_for_all(late_s, wait_all_ranks, who):
    run = emulated(errors_of_a_monitored_barrier, late_s, wait_all_ranks)
    assert run.values[0] == (f"[Rank 0]: {who} failed to pass monitoredBarrier in 3000 ms", 4.0)
    for rank, begin_s in enumerate(late_s[1:], 1):
        if begin_s != NEVER:
            reached = (
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv"
            )
            assert run.values[rank][0].startswith(reached)
            assert run.values[rank][1] == max(4.0, begin_s)


def test_a_monitored_barrier_numbers_the_ranks_within_its_group():
    def within_a_group():
        group = dist.new_group([1, 3])
        if dist.get_rank() == 3:
            return ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a rank outside the group hears that its call does nothing
                dist.monitored_barrier(group, timeout=SOON)
        except RuntimeError as error:
            return str(error)
        return ""

    said = "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms"
    assert emulated(within_a_group).values == ["", said, "", ""]


def test_a_monitored_barrier_waits_for_every_rank():
    def behind_it():
        emulate.spend(1.0 * dist.get_rank())
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
        return emulate.elapsed() >= 3.0

    assert emulated(behind_it).values == [True] * WORLD


def test_a_rank_that_misses_a_monitored_barrier_is_named():
    def all_but_one():
        if dist.get_rank() != 2:
            dist.monitored_barrier()

    with pytest.raises(ws.RunTimeout, match=r"Ranks 0, 1 and 3 wait for rank 2 in collective 1, monitored_barrier"):
        emulated(all_but_one)


def save_and_load(folder):
    weights = {"weights": torch.full((3,), 7.0)}
    dcp.async_save(weights, checkpoint_id=folder).result()
    found = {"weights": torch.zeros(3)}
    dcp.load(found, checkpoint_id=folder)
    return found["weights"]


def test_a_checkpoint_is_saved_beside_the_training(tmp_path):
    for value in emulated(save_and_load, str(tmp_path), world_size=2).values:
        assert value.tolist() == [7.0] * 3
