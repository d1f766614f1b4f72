"""Pictures and tables: who is busy when, who sends what to whom, what fills memory, how speed grows, what it costs."""

from worldsize.draw._table import Table, table
from worldsize.draw.bytes_by_axis import bytes_by_axis
from worldsize.draw.chunks import chunks
from worldsize.draw.circle import circle
from worldsize.draw.cost import cost, crossovers
from worldsize.draw.curves import curves
from worldsize.draw.differences import differences
from worldsize.draw.ledger import ledger
from worldsize.draw.memory import memory
from worldsize.draw.memory_over_time import live_bytes, memory_over_time
from worldsize.draw.memory_use import memory_use
from worldsize.draw.mesh import mesh
from worldsize.draw.messages import messages
from worldsize.draw.node import node
from worldsize.draw.picture import Picture
from worldsize.draw.scaling import scaling
from worldsize.draw.scatter import scatter
from worldsize.draw.shares import shares
from worldsize.draw.timeline import timeline, timelines

__all__ = [
    "Picture",
    "Table",
    "bytes_by_axis",
    "chunks",
    "circle",
    "cost",
    "crossovers",
    "curves",
    "differences",
    "ledger",
    "live_bytes",
    "memory",
    "memory_over_time",
    "memory_use",
    "mesh",
    "messages",
    "node",
    "scaling",
    "scatter",
    "shares",
    "table",
    "timeline",
    "timelines",
]
