"""Events on ranks and streams, in seconds, and their analysis: busy shares, waits, the critical path."""

from worldsize.event import Event
from worldsize.timeline.timeline import Timeline

__all__ = ["Event", "Timeline"]
