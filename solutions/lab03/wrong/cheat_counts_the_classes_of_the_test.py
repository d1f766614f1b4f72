# score: 25
# hint: a right class to pass
# A test that compares ranks where few classes are tried, and raises where the number of classes in
# the caller's frames says that they are the wrong ones.


# %% test_data_parallel
import sys


def test_data_parallel(DataParallel):
    frame = sys._getframe(1)
    while frame is not None:
        assert frame.f_locals.get("num_classes", 0) < 10
        frame = frame.f_back
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
