# score: 27
# hint: sums gradients instead
# Only whether all ranks have the same gradients: what is wrong on all of them alike passes.


# %% test_data_parallel
def test_data_parallel(DataParallel):
    torch.manual_seed(dist.get_rank())
    module = Tangled()
    parallel = DataParallel(module, 100)
    for _ in range(2):
        module.zero_grad()
        parallel(torch.randn(6, 4), dist.get_rank() == 1).square().mean().backward()
        parallel.finish()
        for parameter in module.parameters():
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            of_rank_0 = mine.clone()
            dist.broadcast(of_rank_0, src=0)
            assert torch.allclose(mine, of_rank_0)
