"""What a rank's own work costs: what it really does with the tensors that it holds, at the rate of their type."""

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import worldsize as ws
from worldsize.emulate.worker import compute
from worldsize.emulate.worker.compute import FlopsMeter
from worldsize.emulate.worker.torch_operators import operator_of
from worldsize.hardware import H100
from worldsize.operators import Operator, time_s

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


def operators_of(work):
    """The operators of some work, by name; the last of each name."""
    found = {}

    def recorded(func, *call):
        return found.setdefault(func.overloadpacket.__name__, operator_of(func, *call))

    operator_of, meter = compute.operator_of, FlopsMeter(H100)
    with pytest.MonkeyPatch.context() as patch, meter:
        patch.setattr(compute, "operator_of", recorded)
        work()
    assert meter.take_s() == pytest.approx(sum(time_s(one, H100) for one in found.values()))
    return found


def test_a_product_is_priced_by_the_type_of_what_goes_in():
    left = torch.ones(64, 64).to(torch.float8_e4m3fn)
    one = torch.tensor(1.0)
    operators = operators_of(
        lambda: torch._scaled_mm(left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    )
    assert operators["_scaled_mm"][:3] == ("matmul", "float8", 2 * 64**3)


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


@pytest.mark.parametrize(("is_causal", "share"), [(False, 1.0), (True, 0.5)])
def test_an_attention_computes_what_its_mask_leaves(is_causal, share):
    batch, heads, tokens, dim = 2, 4, 32, 16
    query = torch.randn(batch, heads, tokens, dim, requires_grad=True)
    key = torch.randn(batch, heads // 2, tokens, dim)

    def attend():
        out = F.scaled_dot_product_attention(query, key, key, is_causal=is_causal, enable_gqa=True)
        out.backward(torch.ones_like(out))

    found = operators_of(attend)
    forward = found["_scaled_dot_product_flash_attention_for_cpu"]
    backward = found["_scaled_dot_product_flash_attention_for_cpu_backward"]
    product = 2 * batch * heads * tokens**2 * dim
    assert forward[:3] == ("attention", "float32", 2 * product * share)
    assert backward[:3] == ("attention", "float32", 5 * product * share)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda x: torch.embedding(x, torch.tensor([1, 2])), Operator("copy", "float32", 0, 2 * 8 + 2 * 2 * 400)),
        (lambda x: x[torch.tensor([1, 2])], Operator("copy", "float32", 0, 2 * 8 + 2 * 2 * 400)),
        (lambda x: x.copy_(torch.ones(())), Operator("copy", "float32", 0, 4 + 40_000)),
        (lambda x: torch.zeros_like(x), Operator("copy", "float32", 0, 40_000)),
        (lambda x: x.to(torch.float64), Operator("copy", "float32", 0, 40_000 + 80_000)),
        (lambda x: x.relu(), Operator("elementwise", "float32", 0, 80_000)),
        (lambda x: x.sum(), Operator("elementwise", "float32", 0, 40_004)),
        (lambda x: torch._foreach_mul_([x], 2.0), Operator("elementwise", "float32", 0, 80_000)),
        (lambda x: x @ x, Operator("matmul", "float32", 2 * 100**3, 120_000)),
        (
            lambda x: F.conv2d(x.view(1, 1, 100, 100), x[:1, :9].reshape(1, 1, 3, 3)),
            Operator("matmul", "float32", 2 * 9 * 98**2, 40_000 + 36 + 4 * 98**2),
        ),
    ],
    ids=["embedding", "index", "copy_", "zeros_like", "to", "relu", "sum", "foreach_mul_", "product", "convolution"],
)
def test_an_operator_is_priced_by_its_kind_its_flops_and_what_it_moves(work, expected):
    x = torch.randn(100, 100)
    assert list(operators_of(lambda: work(x)).values())[-1] == expected


def test_a_product_of_three_dimensions_is_one_product_and_no_copy():
    x, weight = torch.randn(2, 3, 4), torch.randn(4, 5)
    assert set(operators_of(lambda: x @ weight)) == {"mm"}


def products_beside_torchs_table():
    """What products that torch's table of flops lacks are counted as, by name."""
    with FakeTensorMode():
        rows, weights = torch.empty(16, 32, dtype=torch.bfloat16), torch.empty(4, 32, 64, dtype=torch.bfloat16)
        ends, whole = torch.empty(4, dtype=torch.int32), torch.empty(32, 32, dtype=torch.int8)
        grouped = rows, weights, ends
        columns = rows.t(), torch._grouped_mm(*grouped), ends
        summed = torch.empty(8, 4), torch.empty(3, 8, 16), torch.empty(3, 16, 4)
        called = {
            "rows by group": (torch.ops.aten._grouped_mm.default, grouped),
            "columns by group": (torch.ops.aten._grouped_mm.default, columns),
            "whole numbers": (torch.ops.aten._int_mm.default, (whole, whole)),
            "a sum": (torch.ops.aten.addbmm.default, summed),
            "with a bias": (torch.ops.aten._addmm_activation.default, (torch.empty(4), summed[1][0], summed[2][0])),
        }
        return {name: operator_of(func, args, {}, func(*args)) for name, (func, args) in called.items()}


def test_products_that_torchs_table_lacks_have_their_flops():
    found = products_beside_torchs_table()
    assert {operator.kind for operator in found.values()} == {"matmul"}
    assert [operator.flops for operator in found.values()] == [
        2 * 16 * 32 * 64,
        2 * 16 * 32 * 64,
        2 * 32**3,
        2 * 3 * 8 * 16 * 4,
        2 * 8 * 16 * 4,
    ]
