# score: 19
# hint: without returning a value
# A block that ends by an exception leaves its clock running.

# %% deadline
@contextlib.contextmanager
def deadline(seconds: float):
    """A context for work that may hang: if it takes longer, the process ends within a second.

    It ends wherever it waits, in Python or in a collective, by a signal or with an exit code other
    than 0. What comes after the context has as much time as it likes. Contexts are not nested.
    """
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    yield
    faulthandler.cancel_dump_traceback_later()
