# score: 19
# hint: still waited
# The deadline is never set.

# %% deadline
@contextlib.contextmanager
def deadline(seconds: float):
    yield
