# score: 24
# hint: Test promises
# Asks for zeros where nobody used a parameter; None is right too.


# %% test_data_parallel
def test_data_parallel(DataParallel: type) -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    module = Tangled()
    module.norm.running_mean += rank
    parallel = DataParallel(module, 100)
    torch.manual_seed(0)
    single = Tangled()
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, single.state_dict()[name]), f"{name} is not that of rank 0"

    def gradients_of(batches):
        """The gradients of one process; each (seed, branch) is a batch with a share of the mean."""
        single.zero_grad()
        for seed, is_second in batches:
            batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
            (single(batch, is_second).square().mean() / 2).backward()
        return {name: parameter.grad for name, parameter in single.named_parameters()}

    def backward(seed, is_second):
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        parallel(batch, is_second).square().mean().backward()

    def expect(wanted, scale=1.0):
        for name, parameter in module.named_parameters():
            zeros = torch.zeros_like(parameter)
            assert parameter.grad is not None or not parameter.requires_grad
            mine = parameter.grad if parameter.requires_grad else zeros
            other = zeros if wanted[name] is None else wanted[name] * scale
            assert torch.allclose(mine, other, rtol=1e-4, atol=1e-6), f"the gradient of {name}"

    for step in range(2):
        backward(10 * step + rank, rank == 1)  # each rank takes another branch
        parallel.finish()
        expect(gradients_of([(10 * step, False), (10 * step + 1, True)]))
        module.zero_grad()
    with parallel.no_sync():
        backward(20 + rank, True)
        expect(gradients_of([(20 + rank, True)]), scale=2.0)
    backward(30 + rank, False)
    parallel.finish()
    expect(gradients_of([(20, True), (21, True), (30, False), (31, False)]))
