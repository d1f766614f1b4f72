"""How many tests run at once, and that what they start can be interrupted."""

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under a shell's `&`; what tests start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config):
    """One more than there are cores: half of the tests' time is spent waiting, for ranks, kernels and browsers."""
    return (os.cpu_count() or 1) + 1
