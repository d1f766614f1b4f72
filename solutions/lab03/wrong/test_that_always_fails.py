# score: 24
# hint: a right class to pass
# A test that raises whatever it is given.


# %% test_data_parallel
def test_data_parallel(DataParallel):
    raise AssertionError("this class is wrong")
