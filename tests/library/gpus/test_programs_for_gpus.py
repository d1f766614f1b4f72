"""Programs for GPUs run unmodified on an emulated cluster and on paper; what neither has is refused in a sentence."""

import functools
import os
import types
from pathlib import Path

import pytest
import torch

import worldsize as ws
from worldsize import emulate

OPTIONS = {"world_size": 2, "cluster": "dgx-h100", "echo": False}
ON_PAPER, EMULATED = functools.partial(ws.paper, **OPTIONS), functools.partial(ws.run, **OPTIONS)


def here(fn, *args):
    """What a rank of an emulated cluster returns."""
    return EMULATED(fn, *args).values[0]


def trains(path=""):
    """Train by DDP in mixed precision, as scripts for GPUs do."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, device=device), torch.nn.ReLU(), torch.nn.Linear(16, 4).cuda())
    model = DistributedDataParallel(model.to(local), device_ids=[local], output_device=local)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler()
    samples = TensorDataset(torch.randn(8, 8), torch.randint(4, (8,)))
    for x, labels in DataLoader(samples, batch_size=4, pin_memory=True):
        x, labels = x.to(device, non_blocking=True), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    if path:
        path = f"{path}.{local}"  # a file that another rank is writing cannot be read
        torch.save(model.module.state_dict(), path)
        model.module.load_state_dict(torch.load(path, map_location=f"cuda:{local}"))
    return mean.item(), scaler.is_enabled()


def test_a_training_loop_for_gpus_trains_emulated_and_is_recorded_on_paper(tmp_path):
    loss, scales = here(trains, str(tmp_path / "weights.pt"))
    assert 0 < loss < 3 and scales
    run = ON_PAPER(trains)
    assert run.records[0].num_operators > 50 and [post.op for post in run.records[0].posts].count("all_reduce") == 3


def asks():
    properties = torch.cuda.get_device_properties("cuda:1")
    return [
        [torch.cuda.is_available(), torch.accelerator.is_available(), torch.cuda.is_bf16_supported()],
        [torch.cuda.device_count(), torch.accelerator.device_count(), torch.cuda.current_device()],
        [torch.cuda.get_device_name(), properties.name, str(torch.accelerator.current_accelerator())],
        [*torch.cuda.get_device_capability(), properties.total_memory, *torch.cuda.mem_get_info()],
    ]


def test_the_answers_describe_the_clusters_gpus():
    yes, counts, names, numbers = here(asks)
    assert (yes, counts, names) == ([True] * 3, [8, 8, 0], ["H100 SXM", "H100 SXM", "cuda"])
    assert numbers == [9, 0, 80_000_000_000, 80_000_000_000, 80_000_000_000]


def asks_as_torch():
    def ask():
        return torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available()

    own = {**ask.__globals__, "__name__": "torch.asking"}
    return [list(map(bool, types.FunctionType(ask.__code__, own)())), list(map(bool, ask()))]


def test_torch_gets_its_own_answers():
    of_torch, of_program = here(asks_as_torch)
    assert of_torch == [torch.cuda.is_available(), torch.cuda.device_count() > 0, torch.accelerator.is_available()]
    assert of_program == [True] * 3


def chooses():
    torch.cuda.set_device("cuda:3")
    with torch.cuda.device(5):
        inside = torch.cuda.current_device()
    torch.accelerator.set_device_index(-1)
    return inside, torch.cuda.current_device(), torch.accelerator.current_device_index()


def test_the_current_gpu_is_the_one_that_was_chosen():
    assert here(chooses) == (5, 3, 3)


@pytest.mark.parametrize("run", [EMULATED, ON_PAPER])
def test_a_gpu_that_the_node_lacks_is_refused(run):
    with pytest.raises(ws.RankFailed, match=r"there is no cuda:8 on this node, .*use LOCAL_RANK to choose one"):
        run(lambda: torch.cuda.set_device(8))


def times():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    emulate.spend(0.25)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def test_events_measure_virtual_time():
    assert here(times) == pytest.approx(250)


def test_events_on_paper_have_no_time_yet():
    ON_PAPER(lambda: print(f"{times():.1f} ms"))
    with pytest.raises(ws.RankFailed, match="nothing may depend"):
        ON_PAPER(lambda: times() > 1)


def annotates():
    def graph_of(stream: torch.cuda.Stream | None, where: torch.cuda.device | int) -> torch.cuda.CUDAGraph | None:
        return None

    return list(graph_of.__annotations__) == ["stream", "where", "return"]


def test_classes_remain_classes_in_annotations():
    assert here(annotates)


def times_without():
    event = torch.cuda.Event()
    event.record()
    return event.elapsed_time(event)


def test_an_event_that_keeps_no_time_says_so():
    with pytest.raises(ws.RankFailed, match="both events need enable_timing=True"):
        EMULATED(times_without)


def overlaps():
    side = torch.cuda.Stream(priority=-1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        emulate.spend(2.0)
    emulate.spend(2.0)
    torch.cuda.set_stream(side)
    emulate.spend(1.0)
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()
    return emulate.elapsed()


def test_work_on_streams_overlaps():
    assert here(overlaps) == 3.0


def fills():
    held = torch.cuda.memory_allocated()
    tensor = torch.zeros(1_000_000, device="cuda")
    with_it = torch.cuda.memory_allocated() - held
    del tensor
    peak = torch.cuda.max_memory_allocated() - held
    torch.cuda.reset_peak_memory_stats()
    after = torch.cuda.max_memory_reserved() - held
    stats = torch.accelerator.memory_stats()["allocated_bytes.all.current"] if hasattr(torch, "accelerator") else held
    return with_it, peak, after, stats == torch.cuda.memory_allocated()


@pytest.mark.parametrize("memory", [False, True])
def test_memory_is_what_tensors_hold(memory):
    assert EMULATED(fills, memory=memory).values[0] == (4_000_000, 4_000_000, 0, True)


def test_what_was_made_before_the_first_question_counts():
    def ask():
        tensor = torch.ones(500_000)
        return torch.cuda.memory_allocated() >= tensor.nbytes

    assert here(ask)


def places():
    """Tensors made, moved and restored on GPUs by every kind of name."""
    made = [
        torch.arange(3, device=0),
        torch.fft.fftfreq(4, device="cuda"),
        torch.ones_like(torch.ones(2), device="cuda:1"),
        torch.ones(2).new_full((2,), 7, device=torch.device("cuda", 1)),
        torch.ones(3, pin_memory=True).pin_memory().to("cuda", torch.float64),
        torch.randn(2, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda"),
    ]
    made[0].record_stream(torch.cuda.current_stream())
    return [str(one.device) for one in made], isinstance(torch.Generator("cuda"), torch.Generator)


def test_every_name_of_a_gpu_means_the_cpu():
    assert here(places) == (["cpu"] * 6, True)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: torch.cuda.CUDAGraph(), "CUDA graphs are not emulated"),
        (lambda: torch.cuda.current_blas_handle(), "this needs a real GPU"),
    ],
)
@pytest.mark.parametrize("run", [EMULATED, ON_PAPER])
def test_what_needs_a_real_gpu_is_refused_in_a_sentence(run, call, why):
    with pytest.raises(ws.RankFailed, match=why):
        run(call)


def test_a_tensor_that_no_message_can_hold_is_refused():
    import torch.distributed as dist

    with pytest.raises(ws.RankFailed, match=r"a tensor of 2\.15 GB in one call: .* run this on paper"):
        EMULATED(lambda: dist.all_reduce(torch.empty(1 << 31, dtype=torch.uint8)))


def attends():
    """Attention of heads that are sharded over ranks, with gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cuda", (2,))
    torch.manual_seed(0)
    whole = [torch.randn(2, 4, 8, 16) for _ in range(3)]
    sharded = [distribute_tensor(one, mesh, [Shard(1)]).requires_grad_() for one in whole]
    out = torch.nn.functional.scaled_dot_product_attention(*sharded, is_causal=True)
    out.sum().backward()
    alone = [one.clone().requires_grad_() for one in whole]
    expected = torch.nn.functional.scaled_dot_product_attention(*alone, is_causal=True)
    expected.sum().backward()
    pairs = zip([out, *(one.grad for one in sharded)], [expected, *(one.grad for one in alone)], strict=True)
    return str(out.placements), all(torch.allclose(mine.full_tensor(), right, atol=1e-6) for mine, right in pairs)


def test_attention_is_sharded_by_heads():
    assert here(attends) == ("(Shard(dim=1),)", True)
    ON_PAPER(lambda: init_and_attend())


def init_and_attend():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cuda", (2,))
    q, k, v = (distribute_tensor(torch.randn(2, 4, 8, 16), mesh, [Shard(1)]) for _ in range(3))
    assert torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).placements == (Shard(1),)


SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import beside

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = torch.randint(100, (4,))
data = list(range(100))
rows = torch.tensor([data[i] for i in first], dtype=torch.float32)
for _ in range(2):
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.nn.init.trunc_normal_(model.module.weight)
torch.save(model.state_dict(), sys.argv[1])
print("GIVEN", os.environ["GIVEN"], beside.NAME, f"{rows.mean():.1f}")
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "beside.py").write_text("NAME = 'found'")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return functools.partial(
        ws.torchrun,
        path,
        str(tmp_path / "weights.pt"),
        env={"GIVEN": "7", "PYTHONPATH": str(tmp_path / "modules")},
        cluster="dgx-h100",
        nproc_per_node=2,
        echo=False,
    )


def test_a_script_for_gpus_runs_emulated(script, tmp_path):
    run = script()
    assert "GIVEN 7 found" in run.output[0] and (tmp_path / "weights.pt").exists()
    assert run.warnings == [] and run.values == [None, None]


def test_the_same_script_runs_on_paper_and_writes_nothing(script, tmp_path):
    run = script(paper=True)
    assert (run.world_size, run.cluster.name) == (2, "dgx-h100") and run.step_s > 0
    assert not (tmp_path / "weights.pt").exists()
    copies = [event for event in run.timeline.events if event.name == "torch.save"]
    assert [event.kind for event in copies] == ["checkpoint"] * 2  # to the host, and to the node's own disk


def test_a_script_on_paper_needs_a_cluster_and_a_file(script):
    with pytest.raises(ValueError, match="a script on paper needs a cluster"):
        script(paper=True, cluster=None)
    with pytest.raises(ValueError, match=r"there is no script 'train\.py' in"):
        ws.torchrun("train.py", paper=True, cluster="dgx-h100")


def test_a_script_that_joins_no_group_is_warned_about(tmp_path):
    path = Path(tmp_path, "alone.py")
    path.write_text("import sys\nprint('no GPUs here')\nsys.exit()")
    run = ws.torchrun(path, cluster="dgx-h100", nproc_per_node=2, echo=False)
    assert run.warnings == [
        "no rank joined a process group, so each of the 2 worked alone: the script must call "
        "torch.distributed.init_process_group()"
    ]


def asks_for_its_gpu():
    return torch.cuda.get_device_capability()


def test_a_program_that_asks_for_its_gpu_is_not_priced_on_another():
    run = ON_PAPER(asks_for_its_gpu)
    assert run.on("h100-ndr-x2").cluster.name == "h100-ndr-x2"
    with pytest.raises(
        ValueError, match=r"return torch\.cuda\.get_device_capability.* with H100 SXM, and dgx-b200 has"
    ):
        run.on("dgx-b200")
