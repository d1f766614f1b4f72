# The test multiplies weights by known inputs, so that gradients are known without a second model.


# %% test_data_parallel
class Product(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(3)) for _ in range(3))
        self.shared = self.a
        self.still = nn.Parameter(torch.randn(2), requires_grad=False)
        self.register_buffer("seen", torch.full((2,), seed))

    def forward(self, of_a, of_b, of_c):
        used = [(self.a, of_a), (self.shared, of_a), (self.b, of_b), (self.c, of_c)]
        return sum(factor * parameter.sum() for parameter, factor in used if factor)


def test_data_parallel(DataParallel):
    rank = dist.get_rank()
    model, wanted = Product(rank), Product(0)
    parallel = DataParallel(model, 16)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), wanted.parameters(), strict=True)
    )
    assert torch.equal(model.seen, wanted.seen)

    def held():
        return [
            0.0 if one.grad is None else one.grad[0].item() for one in (model.a, model.b, model.c)
        ]

    for _ in range(2):
        for one in model.parameters():
            one.grad = None
        parallel(*([1.0, 4.0, 0.0] if rank == 0 else [2.0, 0.0, 6.0])).backward()
        parallel.finish()
        assert held() == [3.0, 2.0, 3.0], held()
    for one in model.parameters():
        one.grad = None
    with parallel.no_sync():
        parallel(1.0 + rank, 1.0, 0.0).backward()
        assert held() == [2.0 + 2 * rank, 1.0, 0.0], held()
    parallel(1.0, 0.0, 2.0).backward()
    parallel.finish()
    assert held() == [5.0, 1.0, 2.0], held()
    assert model.still.grad is None
