"""What a rank's own work costs: what it really does with the tensors that it holds, at the rate of their type."""

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize.emulate.compute import FlopsMeter

WIDTH, NUM_TOKENS = 256, 512


def block_work_s(is_by_hand):
    """Seconds of this rank's work in a step of a block cut over all ranks, by hand or by torch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    world_size = dist.get_world_size()
    hidden = 4 * WIDTH // (world_size if is_by_hand else 1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, hidden, bias=False), torch.nn.ReLU(), torch.nn.Linear(hidden, WIDTH, bias=False)
    )
    if not is_by_hand:
        parallelize_module(
            model, init_device_mesh("cpu", (world_size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
        )
    inputs = torch.randn(NUM_TOKENS, WIDTH)
    with ws.span("step"):
        out = model(inputs)
        if is_by_hand:
            dist.all_reduce(out.detach())
        out.sum().backward()


def test_a_block_of_dtensors_takes_what_its_shards_take():
    def work_s(is_by_hand):
        run = ws.run(block_work_s, is_by_hand, world_size=8, cluster="dgx-h100", echo=False)
        return [round(event.duration_s, 15) for event in run.timeline.of(3) if event.name == "step" and event.is_work]

    by_hand_s, by_torch_s = work_s(is_by_hand=True), work_s(is_by_hand=False)
    assert sum(by_torch_s) == pytest.approx(sum(by_hand_s), rel=1e-12)


def test_a_product_is_priced_by_the_type_of_what_goes_in():
    left = torch.ones(64, 64).to(torch.float8_e4m3fn)
    one = torch.tensor(1.0)
    meter = FlopsMeter({"float8": 1e9, "bfloat16": 5e8}, 1e15)
    with meter:
        torch._scaled_mm(left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        assert meter.take_s() == pytest.approx(2 * 64**3 / 1e9)


def copies_s():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    layer(torch.ones(1, WIDTH))


def test_the_copies_of_fsdp2_take_time():
    run = ws.run(copies_s, world_size=2, cluster="dgx-h100", echo=False)
    assert "stream 1" in {event.stream for event in run.timeline.of(0)}


def sum_of_float8():
    dist.all_reduce(torch.ones(4).to(torch.float8_e4m3fn))


def test_a_sum_of_float8_is_refused_where_it_is_called():
    with pytest.raises(ws.RankFailed, match=r"torch cannot reduce torch\.float8_e4m3fn: convert") as caught:
        ws.run(sum_of_float8, world_size=2, cluster="dgx-h100", echo=False)
    assert "in sum_of_float8" in str(caught.value)
