# score: 21.5
# hint: all-reduces along tp
# The weights are gathered along tp, and every rank computes the whole block.

# %% gradients_on_mesh
def gradients_on_mesh(blocks, inputs, targets, mesh):
    num, place = dist.get_world_size(mesh.tp), dist.get_group_rank(mesh.tp, dist.get_rank())

    def gathered(tensor, dim):
        parts = [torch.empty_like(tensor) for _ in range(num)]
        dist.all_gather(parts, tensor.detach().contiguous(), group=mesh.tp)
        return torch.cat(parts, dim).requires_grad_()

    wholes = [
        Block(block.scale, gathered(block.up, 0), gathered(block.down, 1), block.bias)
        for block in blocks
    ]
    x = inputs
    for block in wholes:
        x = x + inner(block, x * block.scale) + block.bias
    loss = sum_of_losses(x, targets)
    sums = torch.tensor([loss.item(), targets.numel()])
    dist.all_reduce(sums, group=mesh.dp)
    (loss / sums[1]).backward()
    for block, whole in zip(blocks, wholes, strict=True):
        block.up.grad = whole.up.grad.chunk(num, 0)[place].clone()
        block.down.grad = whole.down.grad.chunk(num, 1)[place].clone()
        for one in block:
            dist.all_reduce(one.grad, group=mesh.dp)
    return (sums[0] / sums[1]).item()
