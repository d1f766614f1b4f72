"""The emulated cluster: real ranks and real data, with every message priced in virtual time."""

from worldsize.emulate.clockwork import replay
from worldsize.emulate.conductor import Conductor, Forbidden

__all__ = ["Conductor", "Forbidden", "replay"]
