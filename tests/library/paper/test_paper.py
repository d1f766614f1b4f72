"""What a run on paper gives, what it refuses, and what of torch it rests on."""

import dataclasses

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from tests.library.paper import programs
from worldsize import units
from worldsize.draw._timeline_content import TimelineContent
from worldsize.explore import explore
from worldsize.models import shape


def fsdp_of(name, num_layers, batch_size, num_steps=1):
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from worldsize.models.transformer import Transformer

    sizes = dataclasses.replace(shape(name), num_layers=num_layers)
    model = Transformer(sizes)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.layers.values():
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, sizes.vocab_size, (batch_size, sizes.context_length))
    for _ in range(num_steps):
        programs.loss_of(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


LAYERS, RANKS, TOKENS = 2, 1_024, 8_192


@pytest.fixture(scope="module")
def large():
    """Two layers of Llama 3 8B on 1,024 ranks, two steps."""
    return ws.paper(
        fsdp_of,
        "llama-3-8b",
        LAYERS,
        1,
        2,
        world_size=RANKS,
        cluster="h100-ndr-x128",
        tokens_per_step=RANKS * TOKENS,
        echo=False,
    )


def test_flops_are_those_of_the_formula(large):
    sizes = dataclasses.replace(shape("llama-3-8b"), num_layers=LAYERS)
    half_of_attention = 3 * TOKENS * LAYERS * 2 * TOKENS * sizes.width  # which a causal mask hides
    # backward of a fused attention computes the scores once more: 5 products for the forward's 2
    again = 3 * TOKENS * LAYERS * 2 * TOKENS * sizes.width / 6
    expected = sizes.flops(TOKENS, TOKENS) - half_of_attention + again
    useful = large.mfu_fraction * large.step_s * large.cluster.gpu.peak_flops_per_s["bfloat16"]
    assert useful == pytest.approx(expected, rel=0.001)
    assert large.hfu_fraction == large.mfu_fraction  # nothing is recomputed


def test_state_is_a_rank_s_share(large):
    num_parameters = dataclasses.replace(shape("llama-3-8b"), num_layers=LAYERS).num_parameters
    held = large.memory[0].peak
    assert held["optimizer state"] == pytest.approx(8 * num_parameters / RANKS, rel=0.01)
    assert large.fits


def test_a_step_s_traffic_is_three_times_the_weights(large):
    num_parameters = dataclasses.replace(shape("llama-3-8b"), num_layers=LAYERS).num_parameters
    gathered = 2 * 2 * num_parameters  # twice in bfloat16, but the root only once
    reduced = 4 * num_parameters  # in float32
    num_steps = 2
    sent = large.timeline.bytes_sent(0) / num_steps
    assert 0.7 * (gathered + reduced) < sent < 1.001 * (gathered + reduced)


def test_the_same_record_is_priced_on_another_cluster(large):
    slower = large.on("a100-hdr-x128")
    assert slower.records is large.records and slower.step_s > 1.5 * large.step_s
    assert slower.tokens_per_s_per_gpu == pytest.approx(TOKENS / slower.step_s)


def test_another_cluster_is_chosen_in_an_explorer(large):
    explorer = explore(large.on, cluster=["h100-ndr-x128", "a100-hdr-x128"])
    texts = [
        part.text
        for cluster in ("h100-ndr-x128", "a100-hdr-x128")
        for part in explorer.parts(explorer.call({"cluster": cluster}))
    ]
    assert texts == [repr(large), repr(large.on("a100-hdr-x128"))]


def state_bytes(num_ranks):
    num_parameters = dataclasses.replace(shape("llama-3-8b"), num_layers=LAYERS).num_parameters
    return {"optimizer_state_bytes": 8 * num_parameters / num_ranks, "step_s": 0.1}


def test_a_formula_stands_beside_the_record(large):
    table = large.compare(state_bytes, RANKS)
    assert table.columns == ("figure", "formula", "on paper", "off")
    (state, step) = table.cells
    assert state == ("optimizer state", "11.6 MB", "11.7 MB", state[3]) and abs(float(state[3].rstrip("%"))) < 1
    assert step[:3] == ("step", "100 ms", units.format_as("step_s", large.step_s))
    assert "1,024 ranks" in table.title


def peak_bytes():
    return 10**9


def test_a_single_number_has_the_name_of_its_formula(large):
    ((figure, formula, *_),) = large.compare(peak_bytes).cells
    assert (figure, formula) == ("peak", "1 GB")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda: "much", "a number, or a dict of numbers by name; got 'much'"),
        (lambda: {}, "the formula returned no figures"),
        ({"weight_bytes": 1}, "a run on paper has no weight_bytes; known figures: step_s, mfu_fraction"),
    ],
)
def test_a_formula_without_figures_is_refused(large, formula, message):
    with pytest.raises(ValueError, match=message):
        large.compare(formula)


def test_what_is_sent_in_a_step_is_half_of_two(large):
    assert large.sent_bytes == pytest.approx(large.timeline.bytes_sent(0) / 2, rel=1e-9)


def layers_by_fsdp(num_layers, is_recomputed=False):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    from worldsize.models.transformer import Transformer

    model = Transformer(dataclasses.replace(shape("llama-3-8b"), num_layers=num_layers))
    for name, block in model.layers.items():
        if is_recomputed:
            block = model.layers[name] = checkpoint_wrapper(block)
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 128_256, (1, 2_048))
    programs.loss_of(model(tokens), tokens).backward()
    optimizer.step()


def test_a_depth_lies_on_the_line_through_two():
    kwargs = {"world_size": 8, "cluster": "dgx-h100", "tokens_per_step": 8 * 2_048, "echo": False}
    deep, whole = ws.paper(layers_by_fsdp, 8, depths=(2, 3, 4), **kwargs), ws.paper(layers_by_fsdp, 8, **kwargs)
    assert list(deep.runs) == [2, 3, 4] and deep.runs[3].records[0].num_operators < whole.records[0].num_operators
    assert deep.flops() == pytest.approx(whole.flops(), rel=1e-9)
    assert deep.sent_bytes == pytest.approx(whole.sent_bytes, rel=1e-9)
    assert deep.step_s == pytest.approx(whole.step_s, rel=0.02)
    assert deep.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.02)
    assert deep.mfu_fraction == pytest.approx(whole.mfu_fraction, rel=0.02)
    assert deep.tokens_per_s_per_gpu == pytest.approx(whole.tokens_per_s_per_gpu, rel=0.02)
    assert max(map(abs, deep.error_fraction.values())) < 0.02
    slower = deep.on("dgx-a100")
    assert slower.step_s == pytest.approx(whole.on("dgx-a100").step_s, rel=0.02)
    assert "8 layers, of which 2, 3, 4 were recorded" in repr(deep)
    assert deep.compare({"step_s": deep.step_s}).cells[0][3] == "+0.0%"


def takes_no_depth(_num_layers):
    return programs.say_device()


def test_a_program_that_takes_no_depth_is_refused():
    with pytest.raises(ValueError, match="with 4 layers the program does no more than with 2"):
        ws.paper(takes_no_depth, 8, depths=(2, 4), world_size=2, cluster="dgx-h100", echo=False)


@pytest.mark.parametrize("depths", [(2,), (2, 2), (0, 2), (2, 9)])
def test_depths_that_are_none_are_refused(depths):
    with pytest.raises(ValueError, match="give two or more numbers of layers"):
        ws.paper(takes_no_depth, 8, depths=depths, world_size=2, cluster="dgx-h100")


def test_the_record_is_made_quickly(large):
    assert large.records[0].cpu_s < 6  # 2.1 on an idle machine; it was proportional to the ranks before
    assert large.records[0].peak_process_bytes < 400e6


def test_a_cluster_that_is_too_small_is_refused(large):
    with pytest.raises(ValueError, match="8 GPUs; 1024 ranks do not fit"):
        large.on("dgx-h100")


@pytest.mark.parametrize("cluster", [None, "dgx-h100"])
def test_a_rank_without_a_gpu_works_on_the_cpu(cluster):
    assert ws.run(programs.say_device, world_size=2, backend="auto" if cluster else "gloo", cluster=cluster).values == [
        "cpu",
        "cpu",
    ]
    assert ws.paper(programs.say_device, world_size=2, cluster="dgx-h100", echo=False).records


def test_tokens_must_be_declared():
    run = ws.paper(programs.look, "loss", world_size=2, cluster="dgx-h100", echo=False)
    with pytest.raises(ValueError, match="pass tokens_per_step"):
        _ = run.tokens_per_s_per_gpu


def forward_and_backward(is_split):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from worldsize.models.transformer import Transformer

    sizes = dataclasses.replace(shape("llama-3-8b"), num_layers=1)
    model = Transformer(sizes)
    if is_split:
        programs.split_layers(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    tokens = torch.randint(0, sizes.vocab_size, (1, sizes.context_length))
    programs.loss_of(model(tokens), tokens).backward()


def test_a_rank_of_eight_has_an_eighth_of_the_flops():
    split, whole = (
        ws.paper(forward_and_backward, is_split, world_size=8, cluster="dgx-h100", echo=False)
        for is_split in (True, False)
    )
    flops, of_one = (
        sum(number * one.works[place].operator.flops for batch in one.batches for place, number in batch.items())
        for run in (split, whole)
        for one in run.records
    )
    assert flops == pytest.approx(of_one / 8, rel=1e-9)


def stages_of_replicas(num_stages):
    """A pipeline of stages, each replicated by DDP over the ranks that hold it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (num_stages, dist.get_world_size() // num_stages), mesh_dim_names=("pp", "dp"))
    place = mesh.get_local_rank("pp")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    stage = PipelineStage(model, place, num_stages, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 2 * num_stages, loss_fn=lambda y, target: (y - target).square().mean())
    x = torch.ones(4 * num_stages, 64)
    schedule.step(*([x] if place == 0 else []), target=x if place == num_stages - 1 else None)


def test_the_stages_of_a_pipeline_are_recorded_side_by_side():
    run = ws.paper(stages_of_replicas, 4, world_size=512, cluster="h100-ndr-x64", echo=False)
    assert [one.rank for one in run.records] == [0, 128, 256, 384]
    assert [(kind.ranks, kind.num_ranks) for kind in run.kinds] == [((rank,), 128) for rank in range(0, 512, 128)]
    assert 0 < run.timeline.bubble_fraction(0) < 1
    assert run.timeline.name_of(128) == "rank 128, for 128"
    assert TimelineContent(run.timeline).name_of[384] == "rank 384, for 128"


def test_ranks_that_are_named_are_compared():
    run = ws.paper(programs.by_ddp, world_size=64, cluster="h100-ndr-x8", ranks=[0, 63], echo=False)
    (kind,) = run.kinds
    assert (kind.ranks, kind.num_ranks) == ((0, 63), 64)


def test_the_corners_of_a_pipeline_are_of_its_stages_kinds():
    run = ws.paper(stages_of_replicas, 2, world_size=64, cluster="h100-ndr-x8", ranks="corners", echo=False)
    assert [(kind.ranks, kind.num_ranks) for kind in run.kinds] == [((0, 31), 32), ((32, 63), 32)]


def on_three_axes(axes):
    """A layer by tensor parallelism, its replicas, and stages, or parts of a sequence of which later ones see more."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    sizes = {"tp": 2, "pp": 2, "dp": 3} if "pp" in axes else {"tp": 2, "cp": 3, "dp": 2}
    mesh = init_device_mesh("cpu", tuple(sizes[axis] for axis in axes), mesh_dim_names=axes)
    place = {axis: mesh.get_local_rank(axis) for axis in axes}
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    x = torch.ones(8, 64)
    if "pp" in axes:
        num_stages = mesh["pp"].size()
        stage = PipelineStage(model, place["pp"], num_stages, torch.device("cpu"), group=mesh.get_group("pp"))
        schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, target: (y - target).square().mean())
        is_last = place["pp"] == num_stages - 1
        schedule.step(*([] if place["pp"] else [x]), target=x if is_last else None)
    else:
        parts = [torch.empty_like(x) for _ in range(mesh["cp"].size())]
        dist.all_gather(parts, x, group=mesh.get_group("cp"))
        model(torch.cat(parts[: 1 + place["cp"]])).sum().backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad.to_local(), group=mesh.get_group("dp"))


AXES = [
    ("pp", "dp", "tp"),
    pytest.param(("dp", "tp", "pp"), marks=pytest.mark.nightly("a minute, and another order of the same axes")),
    ("dp", "cp", "tp"),
]


@pytest.mark.parametrize("axes", AXES, ids="x".join)
def test_corners_of_three_axes_take_the_step_of_all_ranks(axes):
    kwargs = {"world_size": 12, "cluster": "h100-ndr-x2", "echo": False}
    corners, whole = (ws.paper(on_three_axes, axes, ranks=ranks, **kwargs) for ranks in ("corners", range(12)))
    assert len(corners.records) < 12
    assert sum(kind.num_ranks for kind in whole.kinds) == 12
    assert corners.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert corners.peak_bytes == whole.peak_bytes and corners.sent_bytes == whole.sent_bytes


def more_on_the_last():
    import torch
    import torch.distributed as dist

    is_last = dist.get_rank() == dist.get_world_size() - 1
    x = torch.ones(64, 64) @ torch.ones(64, 64)
    dist.all_reduce(x @ x if is_last else x)


def test_a_last_rank_that_does_more_is_a_kind_found_by_corners():
    run = ws.paper(more_on_the_last, world_size=64, cluster="h100-ndr-x8", ranks="corners", echo=False)
    assert [(kind.ranks, kind.num_ranks) for kind in run.kinds] == [((0,), None), ((63,), None)]


def test_one_recorded_rank_is_not_known_to_stand_for_others():
    run = ws.paper(more_on_the_last, world_size=64, cluster="h100-ndr-x8", echo=False)
    assert [(kind.ranks, kind.num_ranks) for kind in run.kinds] == [((0,), None)]


def does_nothing():
    pass


def test_equal_ranks_stand_for_every_rank_of_a_job_of_another_size():
    run = ws.paper(does_nothing, world_size=5, ranks=[0, 4], cluster="dgx-h100", echo=False)
    assert [(kind.ranks, kind.num_ranks) for kind in run.kinds] == [((0, 4), 5)]
    assert run.timeline.stands_for == {0: 3, 4: 2}


def hands_on(num_stages):
    rank, stages = dist.get_rank(), dist.new_group(range(num_stages))
    if 0 < rank < num_stages:
        dist.recv(torch.ones(10), rank - 1, stages)
    if rank < num_stages - 1:
        dist.send(torch.ones(10), rank + 1, stages)


def test_stages_that_leave_a_rank_over_stand_for_nobody_else():
    run = ws.paper(hands_on, 4, world_size=5, ranks=[0, 1, 2, 3], cluster="dgx-h100", echo=False)
    assert {kind.num_ranks for kind in run.kinds} == {None}


def test_a_step_that_takes_no_time_has_no_rate():
    run = ws.paper(does_nothing, world_size=2, cluster="dgx-h100", tokens_per_step=10, echo=False)
    with pytest.raises(ValueError, match="the step takes no time"):
        _ = run.tokens_per_s_per_gpu


def trains_without_modules(num_steps):
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(num_steps):
        (torch.randn(8, 64) @ weight).sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def test_updates_alone_bound_a_step_where_no_module_has_a_forward_pass():
    runs = [ws.paper(trains_without_modules, num, world_size=2, cluster="dgx-h100", echo=False) for num in (2, 5)]
    assert runs[0].step_s == pytest.approx(runs[1].step_s) == pytest.approx(runs[1].timeline.end_s / 5, rel=0.1)


def updates_by_itself(num_steps):
    model = torch.nn.Linear(64, 64)
    for _ in range(num_steps):
        model(torch.randn(8, 64)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def test_a_run_without_an_optimizer_says_that_its_step_is_the_whole_program():
    run = ws.paper(updates_by_itself, 3, world_size=2, cluster="dgx-h100", echo=False)
    assert "no update by an optimizer of torch: the step is the whole program" in repr(run)
    assert "no update" not in repr(ws.paper(trains_without_modules, 2, world_size=2, cluster="dgx-h100", echo=False))


def sends_along_a_column(num_columns):
    """A pipeline by hand in the default group, of ranks so far apart."""
    import torch
    import torch.distributed as dist

    rank, layer = dist.get_rank(), torch.nn.Linear(1024, 1024)
    for _ in range(4):
        x = torch.zeros(1024, 1024)
        if rank >= num_columns:
            dist.recv(x, rank - num_columns)
        y = layer(x)
        if rank + num_columns < dist.get_world_size():
            dist.send(y.detach(), rank + num_columns)


@pytest.mark.nightly("a minute, and smaller pipelines are found the same way")
def test_a_pipeline_in_a_large_group_is_found_by_its_messages():
    where = {"world_size": 64, "cluster": "h100-ndr-x8", "echo": False}
    run = ws.paper(sends_along_a_column, 16, **where)
    assert [one.rank for one in run.records] == [0, 16, 32, 48]
    assert run.timeline.bubble_fraction(0) > 0.2
    corners = ws.paper(sends_along_a_column, 16, ranks="corners", **where)
    assert [one.rank for one in corners.records] == [0, 15, 16, 31, 32, 47, 48, 63]
    assert corners.step_s == pytest.approx(run.step_s)
    with pytest.raises(ValueError, match="messages lead from rank 0 to more than 32 ranks"):
        ws.paper(sends_along_a_column, 1, **where)


def test_a_size_that_ranks_differ_in_is_the_largest():
    for ranks in ([0], [1], [0, 1, 2, 3]):
        run = ws.paper(programs.by_scatter, world_size=4, cluster="dgx-h100", ranks=ranks, echo=False)
        assert [event.size_bytes for event in run.timeline.of(ranks[0]) if event.kind == "communication"] == [1 << 22]


def two_networks(num_steps, num_forwards_after=0):
    import torch

    networks = [programs.mlp() for _ in range(2)]
    optimizers = [torch.optim.AdamW(one.parameters(), foreach=True) for one in networks]
    for _ in range(num_steps):
        for network, optimizer in zip(networks, optimizers, strict=True):
            network(torch.ones(8, 512)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for _ in range(num_forwards_after):
        networks[0](torch.ones(8, 512))


def test_a_step_is_from_an_update_to_the_next_by_the_same_optimizer():
    where = {"world_size": 1, "cluster": "dgx-h100", "echo": False}
    two, three = (ws.paper(two_networks, number, **where) for number in (2, 3))
    assert three.step_s == pytest.approx(three.timeline.end_s - two.timeline.end_s)
    assert ws.paper(two_networks, 3, 2, **where).step_s == pytest.approx(three.step_s)


def updates_in_backward():
    import torch
    from torch.utils.checkpoint import checkpoint

    layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    for one in layers.parameters():
        optimizer = torch.optim.SGD([one], lr=0.1)
        one.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(2):
        x = torch.ones(512, 512, requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.mean().backward()


def test_a_recompute_begins_no_step():
    run = ws.paper(updates_in_backward, world_size=1, cluster="dgx-h100", echo=False)
    assert run.step_s == pytest.approx(run.timeline.end_s / 2, rel=0.2)


def decides(how):
    import torch

    loss = torch.nn.Linear(4, 4)(torch.ones(4)).mean()
    print(f"{loss.item():.3f}", round(loss.item(), 3), sum([loss.item(), 1.0]) / 2)
    if how == "comparison":
        return loss.item() < 3
    if how == "list":
        return loss.reshape(1).tolist()[0] < 3
    if how == "remainder":
        return loss.item() // 1 < 3
    if how == "rounded":
        return round(loss.item())
    if how == "mean":
        return 1 if sum([loss.item()] * 2) / 2 else 0
    return int(loss.item())


@pytest.mark.parametrize("how", ["comparison", "list", "mean", "remainder", "rounded", "whole number"])
def test_nothing_is_decided_by_a_number_that_is_not_known(how):
    with pytest.raises(ws.RankFailed, match="returns nan, on which nothing may depend"):
        ws.paper(decides, how, world_size=1, cluster="dgx-h100", echo=False)


def keeps_on_the_host(how):
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    if how == "policy":
        return fully_shard(torch.nn.Linear(4, 4), offload_policy=CPUOffloadPolicy())
    if how == "workers":
        return list(torch.utils.data.DataLoader([1, 2], num_workers=1))
    with torch.autograd.graph.save_on_cpu():
        return torch.ones(2)


@pytest.mark.parametrize(("how", "why"), [("policy", "one memory"), ("saved", "one memory"), ("workers", "no workers")])
def test_what_a_host_would_do_is_refused(how, why):
    with pytest.raises(ws.RankFailed, match=why):
        ws.paper(keeps_on_the_host, how, world_size=1, cluster="dgx-h100", echo=False)


@pytest.mark.parametrize("ranks", [[], [0, 0], [64], [True], [0.0], ["0"], 3, "corner"])
def test_ranks_that_are_none_are_refused(ranks):
    with pytest.raises(ValueError, match="different ranks from 0 to 63"):
        ws.paper(programs.by_ddp, world_size=64, cluster="h100-ndr-x8", ranks=ranks)


@pytest.mark.parametrize(("how", "line"), [("branch", "x > 1"), ("size", "nonzero"), ("integer", "argmax")])
def test_a_look_at_data_is_refused_with_its_line(how, line):
    with pytest.raises(ws.RankFailed) as caught:
        ws.paper(programs.look, how, world_size=2, cluster="dgx-h100", echo=False)
    assert "on paper tensors have shapes and no data" in str(caught.value)
    assert line in str(caught.value)


def test_a_routing_that_is_not_declared_is_refused():
    with pytest.raises(ws.RankFailed, match=r"ws\.declared") as caught:
        ws.paper(programs.by_experts, False, world_size=4, cluster="dgx-h100", echo=False)
    assert "counts.tolist()" in str(caught.value)


def test_a_declared_number_is_the_tensors_where_it_has_some():
    counts = torch.tensor([3, 5])
    assert ws.declared(counts, on_paper=[4, 4]) == [3, 5]
    with pytest.raises(ValueError, match="declare one number for each"):
        ws.declared(counts, on_paper=[8])


def on_a_gpu():
    import torch

    layer = torch.nn.Linear(8, 8, device="cuda")
    layer(torch.ones(2, 8, device="cuda")).sum().backward()


def test_tensors_may_be_made_on_a_gpu_by_name():
    run = ws.paper(on_a_gpu, world_size=2, cluster="dgx-h100", echo=False)
    assert run.records[0].num_operators > 3


def moved_to_a_gpu():
    import torch

    torch.cuda.set_device(torch.cuda.current_device())
    layer = torch.nn.Linear(8, 8).to("cuda").cuda()
    x = torch.ones(2, 8).to(device=torch.device("cuda", 0), dtype=torch.float32).cuda()
    layer(x).sum().backward()
    torch.cuda.synchronize()


def moved_by_number():
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    layer = torch.nn.Linear(8, 8).to(rank)
    x = torch.ones(2, 8, device=rank).to(0).to(device=rank).cuda(0)
    layer(x).sum().backward()


def pinned():
    import torch

    with torch.cuda.device(0):
        torch.ones(2, 8, pin_memory=True).pin_memory().to("cuda", non_blocking=True)


def emptied_there():
    import torch

    with torch.device("meta"):
        layer = torch.nn.Linear(8, 8)
    layer.to_empty(device="cuda")
    layer(torch.ones(2, 8, device="cuda")).sum().backward()


def staged_on_a_gpu():
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(8, 8, device="cuda"), rank, num_ranks, torch.device("cuda", rank))
    x = torch.ones(8, 8, device="cuda")
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, target: (y - target).square().mean())
    schedule.step(*([x] if rank == 0 else []), target=x if rank == num_ranks - 1 else None)


@pytest.mark.parametrize("program", [moved_to_a_gpu, moved_by_number, pinned, emptied_there, staged_on_a_gpu])
def test_a_program_may_move_to_a_gpu(program):
    assert ws.paper(program, world_size=2, cluster="dgx-h100", echo=False).records[0].num_operators > 0


def sharded_on(device):
    """FSDP2 of one dim of a mesh, tensor parallelism of the other."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device, (4, 2), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, device=device), torch.nn.Linear(64, 64, device=device))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for part in (*model, model):
        fully_shard(part, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        model(torch.ones(4, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def replicated_on(device):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layer = torch.nn.Linear(8, 8, device=device)
    model = DistributedDataParallel(layer, device_ids=[0], output_device=0) if device == "cuda" else layer
    model = model if device == "cuda" else DistributedDataParallel(layer)
    model(torch.ones(2, 8, device=device)).sum().backward()


def cast_on(device):
    import torch

    layer = torch.nn.Linear(8, 8, device=device)
    with torch.autocast(device, torch.bfloat16):
        y = layer(torch.ones(2, 8, device=device))
    assert y.dtype is torch.bfloat16
    y.sum().backward()


@pytest.mark.parametrize("program", [sharded_on, replicated_on, cast_on])
def test_a_program_on_a_gpu_is_recorded_as_on_the_cpu(program):
    gpu, cpu = (ws.paper(program, on, world_size=8, cluster="dgx-h100", echo=False) for on in ("cuda", "cpu"))
    assert gpu.records[0].is_like(cpu.records[0])
    assert (gpu.step_s, gpu.peak_bytes) == (cpu.step_s, cpu.peak_bytes)


def numbers_a_gpu():
    import torch

    return torch.device(0)


def test_a_gpu_by_its_number_alone_is_refused_with_its_line():
    with pytest.raises(
        ws.RankFailed, match=r'no GPU to number: use ws\.device\(\) .* or torch\.device\("cuda", 0\)'
    ) as caught:
        ws.paper(numbers_a_gpu, world_size=2, cluster="dgx-h100", echo=False)
    assert "return torch.device(0)" in str(caught.value)
