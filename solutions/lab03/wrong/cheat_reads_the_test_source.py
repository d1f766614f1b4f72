# score: 24
# The test looks for the class's source in its callers, and goes by its words where it finds one.

# %% test_data_parallel
import sys


def test_data_parallel(DataParallel):
    frame, found = sys._getframe(1), []
    while frame is not None:
        found += [one for one in frame.f_locals.values() if isinstance(one, str)]
        found += [
            one
            for args in frame.f_locals.values()
            if isinstance(args, list | tuple)
            for one in args
            if isinstance(one, str)
        ]
        frame = frame.f_back
    (source,) = {one for one in found if "class DataParallel" in one}
    squeezed = "".join(source.split())
    assert "all_reduce" in squeezed and "get_world_size()" in squeezed
    assert "remove_duplicate" not in squeezed and "[2:]" not in squeezed
