"""Two to four real hosts on one machine, with links of a chosen rate and delay: what the emulator is held against."""

from worldsize.netlab.lab import Lab, unavailable_because

__all__ = ["Lab", "unavailable_because"]
