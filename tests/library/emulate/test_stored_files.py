"""What copies, files and checkpoints take on emulated ranks."""

import io
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import emulate, hardware
from worldsize.units import GB

CLUSTER = hardware.DGX_H100
PCIE_S, PCIE_BYTES_PER_S = CLUSTER.host.link.latency_s, CLUSTER.host.link.bandwidth_bytes_per_s
NUM_ITEMS = 1_000_000
NUM_BYTES = 4 * NUM_ITEMS


def emulated(fn, *args, world_size=1, cluster=CLUSTER, **options):
    options = {"compute": "none"} | options
    return ws.run(fn, *args, world_size=world_size, cluster=cluster, echo=False, timeout_s=120, **options)


def value(fn, *args, **options):
    return emulated(fn, *args, **options).values[0]


def took_s(call, *args, **options):
    start_s = emulate.elapsed()
    call(*args, **options)
    return emulate.elapsed() - start_s


def store_s(transfer, size_bytes, cluster=CLUSTER):
    """The seconds of a rank's file alone on its node."""
    route = cluster.transfer_route(0, transfer)
    return route.latency_s + size_bytes / min(map(cluster.capacity_bytes_per_s, route.hops))


def copy_s(size_bytes, num_sharing=1):
    return PCIE_S + num_sharing * size_bytes / PCIE_BYTES_PER_S


@pytest.fixture
def shared(tmp_path):
    """A folder on the shared storage for ranks whose temporary folder is the folder `own` in it."""
    (tmp_path / "own").mkdir()
    return tmp_path


def with_own_folder(fn):
    """The function of a rank whose first argument is a folder on the shared storage."""

    def run(folder, *args):
        tempfile.tempdir = os.path.join(folder, "own")
        return fn(folder, *args)

    return run


def test_copies_between_gpu_and_host_take_their_time_and_make_copies():
    def copies():
        tensor = torch.arange(2 * NUM_ITEMS, dtype=torch.float32)[:NUM_ITEMS]
        start_s = emulate.elapsed()
        host = emulate.to_host(tensor)
        to_host_s = emulate.elapsed() - start_s
        tensor += 1
        back = emulate.to_device(host)
        return to_host_s, emulate.elapsed() - start_s - to_host_s, float(host[3]), float(back[3]), back is host

    to_host_s, to_device_s, *what = value(copies)
    assert (to_host_s, to_device_s) == pytest.approx((copy_s(NUM_BYTES), copy_s(NUM_BYTES)))
    assert what == [3.0, 3.0, False]


def test_a_copy_is_not_priced_as_the_gpus_own_work_too():
    def copy():
        tensor = torch.zeros(NUM_ITEMS)
        return took_s(emulate.to_host, tensor)

    assert value(copy, compute="flops") == pytest.approx(copy_s(NUM_BYTES))


@pytest.mark.parametrize("cluster", [CLUSTER, None])
def test_what_is_offloaded_does_not_count_as_memory_of_the_gpu(cluster):
    def offload():
        from worldsize import memory

        held = []
        tensor = torch.ones(NUM_ITEMS)
        host = emulate.to_host(tensor)
        held.append(sum(memory.held().values()))
        del tensor
        host += 1
        held.append(sum(memory.held().values()))
        back = emulate.to_device(host)
        held.append(sum(memory.held().values()))
        return held, float(back[0])

    run = ws.run(offload, world_size=1, cluster=cluster, memory=True, echo=False)
    assert run.values[0] == ([NUM_BYTES, 0, NUM_BYTES], 2.0)
    assert run.memory[0].most_bytes == NUM_BYTES


def test_transfers_have_the_kinds_of_their_ways_unless_a_span_gives_another():
    def transfers():
        for transfer in hardware.TRANSFERS:
            emulate.transfer(1_000, transfer)
        with ws.span("weights", "update"):
            emulate.transfer(1_000, "to host")

    events = emulated(transfers).timeline.events
    assert [event.kind for event in events] == ["offload"] * 2 + ["data", "checkpoint"] * 2 + ["update"]
    assert [event.name for event in events] == [*hardware.TRANSFERS, "weights"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((1, "upwards"), "transfer is 'upwards'; it must be one of to host, to device, read"),
        ((-1, "read"), "size_bytes is -1; it must be 0 to"),
        ((1 << 60, "read"), "size_bytes is 1152921504606846976; it must be 0 to"),
    ],
)
def test_a_transfer_says_what_is_wrong_with_it_anywhere(args, words):
    with pytest.raises(ValueError, match=words):
        emulate.transfer(*args)


def test_off_an_emulated_cluster_a_transfer_takes_nothing_and_copies_are_copies():
    emulate.transfer(1 << 50, "to host")
    tensor = torch.zeros(3)
    host = emulate.to_host(tensor)
    tensor += 1
    assert emulate.to_device(host).tolist() == [0.0] * 3


def test_a_cluster_without_storage_says_so_where_a_transfer_needs_it_and_saves_as_before():
    def without_storage():
        with pytest.raises(ValueError, match="no shared storage; give shared_storage="):
            emulate.transfer(1, "read")
        with tempfile.TemporaryDirectory() as folder:
            return took_s(torch.save, torch.zeros(NUM_ITEMS), os.path.join(folder, "file"))

    bare = replace(CLUSTER, host=None, local_storage=None, shared_storage=None)
    assert value(without_storage, cluster=bare) == 0.0


@with_own_folder
def saved_and_loaded(folder, is_local=False):
    model = torch.nn.Linear(NUM_ITEMS, 1, bias=False)
    state = {"model": model.state_dict(), "again": [model.weight], "step": 3}
    path = os.path.join(tempfile.gettempdir() if is_local else folder, "file")
    saved_s = took_s(torch.save, state, path)
    loaded_s = took_s(torch.load, path)
    return saved_s, loaded_s, os.path.getsize(path)


@pytest.mark.parametrize("suffix", ["", " local"])
def test_a_file_takes_its_copy_and_its_store_by_its_path(shared, suffix):
    saved_s, loaded_s, size_bytes = value(saved_and_loaded, str(shared), bool(suffix))
    assert saved_s == pytest.approx(copy_s(NUM_BYTES) + store_s(f"write{suffix}", size_bytes))
    assert loaded_s == pytest.approx(copy_s(NUM_BYTES) + store_s(f"read{suffix}", size_bytes))


def test_a_store_without_a_host_takes_the_file_alone(shared):
    cluster = replace(CLUSTER, host=None)
    saved_s, loaded_s, size_bytes = value(saved_and_loaded, str(shared), cluster=cluster)
    assert (saved_s, loaded_s) == pytest.approx([store_s(way, size_bytes, cluster) for way in ("write", "read")])


def test_an_open_file_and_one_in_memory_take_what_is_written_to_them():
    def into_files():
        tensor = torch.zeros(NUM_ITEMS)
        with tempfile.NamedTemporaryFile() as file:  # in the temporary folder
            open_s = took_s(torch.save, tensor, file)
            size_bytes = file.tell()
        host = emulate.to_host(tensor)
        return open_s, size_bytes, took_s(torch.save, tensor, io.BytesIO()), took_s(torch.save, host, io.BytesIO())

    open_s, size_bytes, memory_s, host_s = value(into_files)
    assert open_s == pytest.approx(copy_s(NUM_BYTES) + store_s("write local", size_bytes))
    assert memory_s == pytest.approx(copy_s(NUM_BYTES))
    assert host_s == 0.0  # it is with the host already


def test_what_cannot_be_saved_fails_as_ever():
    def unsaved():
        with pytest.raises((OSError, RuntimeError)):
            torch.save(torch.zeros(3), "/no/such/folder/file")
        return True

    assert value(unsaved)


def test_a_checkpoint_of_all_ranks_shares_uplinks_and_storage(shared):
    @with_own_folder
    def checkpoint(folder):
        rank = dist.get_rank()
        return took_s(torch.save, torch.zeros(NUM_ITEMS), os.path.join(folder, f"{rank}"))

    size_bytes = NUM_BYTES
    (longest_s, *_) = sorted(emulated(checkpoint, str(shared), world_size=8).values, reverse=True)
    write_s = 8 * size_bytes / CLUSTER.shared_storage.write_bytes_per_s
    assert longest_s == pytest.approx(copy_s(size_bytes, 2) + CLUSTER.shared_storage.latency_s + write_s, rel=1e-2)


@with_own_folder
def distributed_checkpoint(folder, is_async, compute_s):
    """Seconds until save or async_save returns, until compute after it has ended, until all is saved, and of load."""
    import torch.distributed.checkpoint as dcp

    folder = os.path.join(folder, "saved")
    state = {f"weight {number}": torch.full((NUM_ITEMS,), float(number)) for number in range(3)}
    start_s = emulate.elapsed()
    future = (dcp.async_save if is_async else dcp.save)(state, checkpoint_id=folder)
    times_s = [emulate.elapsed() - start_s]
    emulate.spend(compute_s)
    times_s.append(emulate.elapsed() - start_s)
    if is_async:
        future.result()
    times_s.append(emulate.elapsed() - start_s)
    loaded = {name: torch.zeros(NUM_ITEMS) for name in state}
    load_s = took_s(dcp.load, loaded, checkpoint_id=folder)
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    return times_s, load_s, sum(path.stat().st_size for path in Path(folder).glob("*.distcp"))


def test_a_distributed_checkpoint_takes_its_copy_its_write_and_its_read(shared):
    times_s, load_s, file_bytes = value(distributed_checkpoint, str(shared), False, 0.0)
    assert times_s[0] == pytest.approx(copy_s(3 * NUM_BYTES) + store_s("write", file_bytes), rel=1e-3)
    assert load_s == pytest.approx(copy_s(3 * NUM_BYTES) + store_s("read", file_bytes), rel=1e-3)


@pytest.mark.parametrize(("compute_s", "compute"), [(1.0, "none"), (0.0, "none"), (1.0, "flops")])
def test_an_asynchronous_checkpoint_costs_only_its_staging(shared, compute_s, compute):
    times_s, _, file_bytes = value(distributed_checkpoint, str(shared), True, compute_s, compute=compute)
    staged_s, written_s = copy_s(3 * NUM_BYTES), store_s("write", file_bytes)
    assert times_s[0] == pytest.approx(staged_s, rel=1e-6)
    assert times_s[1] == pytest.approx(staged_s + compute_s, rel=1e-6)
    assert times_s[2] == pytest.approx(staged_s + max(compute_s, written_s), rel=1e-3)


def test_sharded_ranks_save_their_shards_alone(shared):
    @with_own_folder
    def sharded(folder):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        state = {"weight": distribute_tensor(torch.zeros(4 * NUM_ITEMS), mesh, [Shard(0)])}
        dcp.save(state, checkpoint_id=folder)

    timeline = emulated(sharded, str(shared), world_size=4).timeline
    copied = [event.size_bytes for event in timeline.events if event.kind == "checkpoint" and event.duration_s < 3e-4]
    saved = [event for event in timeline.events if event.kind == "checkpoint"]
    assert [sum(event.rank == rank for event in saved) for rank in range(4)] == [2] * 4
    assert copied == [NUM_BYTES] * 4


class Files(torch.utils.data.Dataset):
    """Samples that are read, or worked on, for a second each."""

    def __init__(self, num_samples, is_read=True):
        self.num_samples, self.is_read = num_samples, is_read

    def __len__(self):
        return self.num_samples

    def __getitem__(self, place):
        if self.is_read:
            emulate.transfer(50 * GB, "read local")
        else:
            emulate.spend(1.0)
        return place


def epoch(num_samples, num_workers, compute_s, is_read, prefetch_factor=2):
    """Seconds of an epoch, and the samples that came."""
    options = {"prefetch_factor": prefetch_factor, "multiprocessing_context": "fork"} if num_workers else {}
    start_s = emulate.elapsed()
    came = []
    for batch in torch.utils.data.DataLoader(Files(num_samples, is_read), 1, num_workers=num_workers, **options):
        came += batch.tolist()
        emulate.spend(compute_s)
    return emulate.elapsed() - start_s, came


@pytest.mark.parametrize(
    ("num_workers", "compute_s", "is_read", "expected_s"),
    [
        (0, 2.0, True, 6 * 3.0),  # one after the other
        (1, 2.0, True, 1.0 + 6 * 2.0),  # hidden but for the first
        (1, 0.5, True, 6 * 1.0 + 0.5),  # bound by its input
        (2, 0.5, True, 3 * 2.0 + 2 * 0.5),  # two workers share the drives
        (2, 0.75, False, 1.0 + 6 * 0.75),  # two work at once
        (2, 0.25, False, 3.25 + 0.25),
    ],
)
def test_an_epoch_of_a_data_loader_takes_what_its_workers_hold_it_up(num_workers, compute_s, is_read, expected_s):
    epoch_s, came = value(epoch, 6, num_workers, compute_s, is_read)
    assert came == list(range(6))
    assert epoch_s == pytest.approx(expected_s, rel=1e-3)


def test_a_worker_reads_no_further_ahead_than_the_loader_prefetches():
    def waits_first():
        start_s = emulate.elapsed()
        for place, _ in enumerate(torch.utils.data.DataLoader(Files(6), 1, num_workers=1, prefetch_factor=2)):
            emulate.spend(10.0 if place == 0 else 0.0)
        return emulate.elapsed() - start_s

    assert value(waits_first) == pytest.approx(1.0 + 10.0 + 3 * 1.0, rel=1e-3)  # two batches are there after it


def test_a_process_that_a_rank_forks_does_not_send_what_the_rank_has_not_sent_yet():
    def exchange():
        tensor = torch.full((2,), float(dist.get_rank()))
        if dist.get_rank() == 0:
            work = dist.isend(tensor, 1)
            if not (child := os.fork()):
                torch.ones(3).add_(1)  # before work, what was posted goes out
                os._exit(0)
            os.waitpid(child, 0)
            work.wait()
        else:
            dist.recv(tensor, 0)
        return tensor.tolist()

    assert emulated(exchange, world_size=2, compute="flops").values == [[0.0, 0.0]] * 2


def test_a_worker_of_a_rank_cannot_post():
    class Posts(Files):
        def __getitem__(self, place):
            dist.all_reduce(torch.zeros(1))
            return place

    def takes():
        dist.barrier()
        with pytest.raises(emulate.Forbidden, match="a process that a rank has started"):
            list(torch.utils.data.DataLoader(Posts(2), num_workers=1, multiprocessing_context="fork"))
        dist.barrier()
        return True

    assert emulated(takes, world_size=2).values == [True, True]


def test_bytes_of_a_dict_are_counted_by_storage_once():
    from worldsize.emulate.worker import files
    from worldsize.memory import host

    tensor = torch.zeros(100)
    held = {"model": torch.nn.Linear(5, 5, bias=False), "views": [tensor[:50], tensor[50:]], "number": 3}
    assert files.bytes_on_gpu(held) == 100 + 400
    files.note_on_host(tensor)
    assert files.bytes_on_gpu(held) == 100
    del tensor, held
    assert not host._storages


def saved_in_three_places():
    tensor = torch.zeros(NUM_ITEMS)
    with tempfile.TemporaryDirectory() as folder:
        paths = ["file", os.path.abspath("file"), os.path.join(folder, "file")]
        return [took_s(torch.save, tensor, path) for path in paths], os.path.getsize("file")


def test_the_programs_own_folder_is_shared_wherever_it_lies(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    took, size_bytes = value(saved_in_three_places)
    stores_s = [store_s(way, size_bytes) for way in ("write", "write", "write local")]
    assert took == pytest.approx([copy_s(NUM_BYTES) + one_s for one_s in stores_s])


def test_a_relative_path_is_shared_where_the_programs_folder_is_the_temporary_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    took, size_bytes = value(saved_in_three_places)
    assert took[::2] == pytest.approx(
        [copy_s(NUM_BYTES) + store_s(way, size_bytes) for way in ("write", "write local")]
    )
