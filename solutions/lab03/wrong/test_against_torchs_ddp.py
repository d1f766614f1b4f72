# score: 26
# hint: no_sync
# One step of a plain network beside torch's DDP: state, branches and no_sync are not looked at.


# %% test_data_parallel
def test_data_parallel(DataParallel):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    ours, theirs = DataParallel(models[0], 100), nn.parallel.DistributedDataParallel(models[1])
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    ours(inputs).square().mean().backward()
    ours.finish()
    theirs(inputs).square().mean().backward()
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-6)
