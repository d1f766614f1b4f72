# score: 21
# hint: Here backward sums along tp also where the region is left
# The gradient is summed over tp where the region is left, too.

# %% gradients_on_mesh
def gradients_on_mesh(
    blocks: list[Block], inputs: torch.Tensor, targets: torch.Tensor, mesh: Mesh
) -> float:
    class Enter(torch.autograd.Function):
        """An identity whose gradient is summed over tp."""

        @staticmethod
        def forward(ctx, tensor):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, part):
            total = part.clone()
            dist.all_reduce(total, group=mesh.tp)
            return total

    class Leave(torch.autograd.Function):
        """A sum over tp whose gradient goes back as it is."""

        @staticmethod
        def forward(ctx, tensor):
            total = tensor.clone()
            dist.all_reduce(total, group=mesh.tp)
            return total

        @staticmethod
        def backward(ctx, whole):
            total = whole.clone()
            dist.all_reduce(total, group=mesh.tp)
            return total

    x = inputs
    for block in blocks:
        scaled = Enter.apply(x * block.scale)
        x = x + Leave.apply(inner(block, scaled)) + block.bias
    loss = sum_of_losses(x, targets)
    sums = torch.tensor([loss.item(), targets.numel()])
    dist.all_reduce(sums, group=mesh.dp)
    (loss / sums[1]).backward()
    parameters = [one for block in blocks for one in block]
    flat = torch.cat([one.grad.flatten() for one in parameters])
    dist.all_reduce(flat, group=mesh.dp)
    for one, total in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        one.grad = total.view_as(one)
    return (sums[0] / sums[1]).item()
