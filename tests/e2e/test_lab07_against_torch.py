"""Lab 7's solution against one process, torch's FSDP2 and its ZeroRedundancyOptimizer: losses, bytes, and time."""

import pytest
import torch
import torch.distributed as dist
import zero_by_hand
from zero_by_hand import by_hand, by_torch, in_one_process, joined, solution_source, solved

import worldsize as ws
from worldsize import emulate, models

pytestmark = pytest.mark.slow

SOURCE, NUM_RANKS = solution_source(), 4
OTHERS = ("tied", "frozen", "used twice", "unused in a step", "clipped")  # the lab's hidden checks have them, too
AT_NIGHT = pytest.mark.nightly("half a minute each")


def ran(fn, *args, world_size=NUM_RANKS, **options):
    options = {"compute": "none", "cluster": "dgx-h100", "echo": False, "timeout_s": 240} | options
    return ws.run(fn, *args, world_size=world_size, **options)


def mean_losses(run):
    values = [value[0] if isinstance(value, tuple) else value for value in run.values]
    return torch.tensor(values).mean(dim=0)


def expect_losses(run, wanted):
    torch.testing.assert_close(mean_losses(run), torch.tensor(wanted), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("case", ["plain", *(pytest.param(case, marks=AT_NIGHT) for case in OTHERS)])
def test_losses_are_those_of_one_process_and_of_torch(case):
    num_steps = 50 if case == "plain" else 8
    wanted = in_one_process(case, num_steps, NUM_RANKS)
    assert wanted[-1] < wanted[0]
    for stage in (1, 2, 3):
        expect_losses(ran(by_hand, SOURCE, stage, case, range(num_steps), NUM_RANKS), wanted)
    expect_losses(ran(by_torch, "FSDP2", case, num_steps, NUM_RANKS), wanted)
    expect_losses(ran(by_torch, "ZeroRedundancyOptimizer", case, num_steps, NUM_RANKS), wanted)


@pytest.mark.parametrize("num_ranks", [4, 2])
def test_training_goes_on_from_a_checkpoint_of_four_ranks(num_ranks):
    wanted = in_one_process("frozen", 10, NUM_RANKS)
    first = ran(by_hand, SOURCE, 3, "frozen", range(5), NUM_RANKS)
    whole = joined([value[1] for value in first.values], first.values[0][2])
    rest = ran(by_hand, SOURCE, 3, "frozen", range(5, 10), NUM_RANKS, whole, world_size=num_ranks)
    expect_losses(rest, wanted[5:])


def test_real_ranks_give_the_same_losses():
    wanted = in_one_process("tied", 5, 2)
    run = ws.run(by_hand, SOURCE, 3, "tied", range(5), 2, world_size=2, backend="gloo", echo=False)
    expect_losses(run, wanted)


def test_the_stages_send_what_the_formulas_say():
    def sent(stage, num_steps):
        return ran(by_hand, SOURCE, stage, "plain", range(num_steps), NUM_RANKS).timeline.bytes_sent(0)

    padded = [
        -(-sum(one.numel() for one in block.parameters()) // NUM_RANKS) for block in zero_by_hand.make_model("plain")
    ]
    unit_bytes = 4 * sum(padded) * (NUM_RANKS - 1)
    for stage, factor in ((1, 2), (2, 2), (3, 3)):
        assert sent(stage, 3) - sent(stage, 2) == factor * unit_bytes


def step_s(source, is_by_hand, num_tokens):
    """The virtual seconds of a second forward and backward of the small transformer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = models.Transformer(models.shape("small")).to(torch.bfloat16)
    layers = list(model.layers.values())
    if is_by_hand:
        lab = solved(source)
        blocks = lab.make_blocks(layers)
        sharded = lab.FullyShard(blocks, lab.Prefetching(blocks))
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    hidden = torch.ones(1, num_tokens, models.shape("small").width, dtype=torch.bfloat16)
    for _ in range(2):
        start_s, outputs = emulate.elapsed(), hidden
        for layer in layers:
            outputs = layer(outputs)
        outputs.float().square().mean().backward()
        if is_by_hand:
            sharded.finish()
        end_s = emulate.elapsed()
    return end_s - start_s


@pytest.mark.parametrize(("cluster", "num_tokens"), [("dgx-h100", 512), ("pcie-box", 16)])
def test_a_step_takes_no_longer_than_with_fsdp2(cluster, num_tokens):
    by_hand_s, theirs_s = (
        ran(step_s, SOURCE, is_by_hand, num_tokens, compute="flops", cluster=cluster).values[0]
        for is_by_hand in (True, False)
    )
    assert by_hand_s < 1.05 * theirs_s
