"""Two to four real hosts on one machine, with links of a chosen rate and delay: the reference for the emulator."""

from netlab.virtual_hosts import Lab, unavailable_because

__all__ = ["Lab", "unavailable_because"]
