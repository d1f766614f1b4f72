"""SyncBatchNorm on an emulated cluster of GPUs gives what BatchNorm gives on all ranks' samples together."""

import pytest
import torch
import torch.distributed as dist

import worldsize as ws

WORLD = 3


def made(affine, momentum):
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm2d(4, affine=affine, momentum=momentum)
    if affine:
        torch.nn.init.normal_(layer.weight)
        torch.nn.init.normal_(layer.bias)
    return layer


def samples():
    """Samples and the gradients of what becomes of them, for each rank; the ranks have different numbers of them."""
    torch.manual_seed(1)
    return [(3 + 2 * torch.randn(1 + rank, 4, 5, 5), torch.randn(1 + rank, 4, 5, 5)) for rank in range(WORLD)]


def synchronised(affine, momentum):
    layer = torch.nn.SyncBatchNorm.convert_sync_batchnorm(made(affine, momentum)).cuda()
    if affine:
        layer = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[dist.get_rank()])
    mine, gradient = samples()[dist.get_rank()]
    mine.requires_grad_()
    output = layer(mine)
    output.backward(gradient)
    trained = [WORLD * one.grad for one in layer.parameters()]  # DDP averages
    running = [one.clone() for one in layer.buffers()]
    layer.eval()
    return output.detach(), mine.grad, trained, running, layer(mine).detach()


@pytest.mark.parametrize(("affine", "momentum"), [(True, 0.3), (False, None)])
def test_synchronised_statistics_are_those_of_all_samples(affine, momentum):
    layer = made(affine, momentum)
    whole, gradient = (torch.cat(parts) for parts in zip(*samples(), strict=True))
    whole.requires_grad_()
    output = layer(whole)
    output.backward(gradient)
    run = ws.run(synchronised, affine, momentum, world_size=WORLD, cluster="dgx-h100", echo=False)
    outputs, gradients, trained, running, evaluated = zip(*run.values, strict=True)
    torch.testing.assert_close(torch.cat(outputs), output.detach())
    torch.testing.assert_close(torch.cat(gradients), whole.grad)
    for of_rank, buffers in zip(trained, running, strict=True):
        torch.testing.assert_close(of_rank, [one.grad for one in layer.parameters()])
        torch.testing.assert_close(buffers, list(layer.buffers()))
    torch.testing.assert_close(torch.cat(evaluated), layer.eval()(whole).detach())
    assert {"all_gather", "all_reduce"} <= {event.name for event in run.timeline.of(0)}
