# score: 19
# hint: still waited
# A Python signal handler raises, which does not run while Gloo waits.

# %% deadline
@contextlib.contextmanager
def deadline(seconds: float):
    def late(*_):
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
