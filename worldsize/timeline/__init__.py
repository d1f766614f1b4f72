"""Events on ranks and streams, in seconds, and what follows from them: busy shares, waits, the critical path."""

from worldsize.event import Event
from worldsize.timeline.timeline import Timeline

__all__ = ["Event", "Timeline"]
