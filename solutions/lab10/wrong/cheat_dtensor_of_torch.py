# score: 19
# hint: not allowed here
# DTensor computes the blocks.

# %% gradients_on_mesh
def gradients_on_mesh(blocks, inputs, targets, mesh):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    ranks = DeviceMesh.from_group(mesh.tp, "cpu")
    x = DTensor.from_local(inputs, ranks, [Replicate()])
    for block in blocks:
        up = DTensor.from_local(block.up, ranks, [Shard(0)])
        down = DTensor.from_local(block.down, ranks, [Shard(1)])
        scale, bias = (DTensor.from_local(one, ranks, [Replicate()]) for one in block[::3])
        x = x + torch.tanh((x * scale) @ up.t()) @ down.t() + bias
    loss = sum_of_losses(x.full_tensor(), targets) / targets.numel()
    loss.backward()
    return loss.item()
