# score: 24
# hint: never leave their rank
# A test that asserts nothing.


# %% test_data_parallel
def test_data_parallel(DataParallel):
    parallel = DataParallel(Tangled(), 100)
    parallel(torch.ones(6, 4)).sum().backward()
    parallel.finish()
