"""What NCCL refuses is refused where CPU tensors stand for a GPU's, and Gloo's silence about it is broken."""

import warnings

import pytest
import torch
import torch.distributed as dist

import worldsize as ws

EMULATED = {"world_size": 2, "cluster": "dgx-h100", "echo": False}
COLUMN = torch.arange(6.0).reshape(3, 2)[:, 0]


def sends_a_column(op):
    mine, other = COLUMN.clone(), torch.zeros(2, 3)
    if op == "broadcast":
        dist.broadcast(torch.arange(6.0).reshape(3, 2)[:, 0], src=0)
    elif op == "all_reduce":
        dist.all_reduce(torch.ones(3, 2).t())
    elif op == "all_gather":
        dist.all_gather(list(other), torch.ones(3, 2)[:, 0])
    else:
        columns = torch.zeros(3, 2)
        dist.all_gather([columns[:, 0].clone(), columns[:, 1].clone()], mine)
        dist.all_reduce(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last))
        dist.send(columns[:, 1], dst=1) if dist.get_rank() == 0 else dist.recv(columns[:, 1], src=0)


@pytest.mark.parametrize("run", [ws.run, ws.paper])
@pytest.mark.parametrize("op", ["broadcast", "all_reduce", "all_gather"])
def test_a_tensor_with_gaps_is_refused(run, op):
    with pytest.raises(
        ws.RankFailed, match=rf"Tensors must be contiguous: {op} got one of shape \(.*NCCL refuses"
    ) as caught:
        run(sends_a_column, op, **EMULATED)
    assert f"dist.{op}(" in str(caught.value) and "broken off" in str(caught.value)
    assert str(caught.value).splitlines()[-1].startswith("What to do: communicate tensor.contiguous()")


def test_what_nccl_accepts_is_accepted():
    ws.run(sends_a_column, "accepted", **EMULATED)


def test_gloo_warns_with_the_line():
    run = ws.run(sends_a_column, "broadcast", world_size=2, echo=False)
    assert all("UserWarning: broadcast got one of shape (3,) with strides (2,)" in output for output in run.output)
    assert "dist.broadcast(torch.arange" in run.output[0]


def reduces_inside_a_loss():
    weight = torch.ones(2, requires_grad=True)
    mean = (weight * 2).mean()
    dist.all_reduce(mean)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean.backward()
    return [f"{one.message} {one.lineno}" for one in caught]


def test_backward_through_a_collective_warns_with_its_line():
    (said,) = ws.run(reduces_inside_a_loss, **EMULATED).values[0]
    line = reduces_inside_a_loss.__code__.co_firstlineno + 3
    assert said.startswith("all_reduce is not differentiable") and said.endswith(f" {line}")


@pytest.mark.parametrize(
    ("rows", "splits", "why"),
    [
        (3, None, "an input of 3 rows, which 2 ranks do not divide"),
        (5, [2, 2], r"input_split_sizes=\[2, 2\] for a tensor of 5 rows and 2 ranks"),
        (4, [4], r"input_split_sizes=\[4\] for a tensor of 4 rows and 2 ranks"),
    ],
)
def test_rows_that_go_nowhere_are_refused(rows, splits, why):
    def exchange():
        dist.all_to_all_single(torch.zeros(4), torch.zeros(rows), None, splits)

    with pytest.raises(ws.RankFailed, match=why):
        ws.run(exchange, **EMULATED)


def test_a_group_is_named_by_its_ranks():
    def broadcast():
        pair = dist.new_group([1, 2])
        if dist.get_rank():
            dist.broadcast(torch.ones(1), src=0, group=pair)

    with pytest.raises(ws.RankFailed, match="Global rank 0 is not part of group <ranks 1 and 2>"):
        ws.run(broadcast, world_size=3, cluster="dgx-h100", echo=False)
