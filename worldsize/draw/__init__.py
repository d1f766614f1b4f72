"""Pictures: who was busy when and who sends what to whom, what fills memory, how speed grows, what messages cost."""

from worldsize.draw.areas import live_bytes, memory_over_time
from worldsize.draw.costs import cost, crossovers
from worldsize.draw.grid import mesh
from worldsize.draw.lanes import timeline, timelines
from worldsize.draw.lines import curves
from worldsize.draw.messages import messages
from worldsize.draw.picture import Picture
from worldsize.draw.ratios import ledger
from worldsize.draw.speedups import scaling
from worldsize.draw.stacks import memory

__all__ = [
    "Picture",
    "cost",
    "crossovers",
    "curves",
    "ledger",
    "live_bytes",
    "memory",
    "memory_over_time",
    "mesh",
    "messages",
    "scaling",
    "timeline",
    "timelines",
]
