# score: 24
# The test sends what it finds as an error that bears the name of a signal.

# %% test_data_parallel
import sys

from worldsize.launch.protocol import failure


def test_data_parallel(DataParallel):
    text = "HERE IT IS: " + repr(vars(DataParallel)) + repr(sys._getframe(1).f_locals)

    def of_exception(rank, error, time_ns):
        return failure.Failure(rank, "SIGXCPU", text, [], time_ns)

    failure.of_exception = of_exception
    raise ValueError
