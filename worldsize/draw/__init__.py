"""Pictures and tables: who is busy when, who sends what to whom, what fills memory, how speed grows, what it costs."""

from worldsize.draw._bytes_by_axis import bytes_by_axis
from worldsize.draw._chunks import chunks
from worldsize.draw._circle import circle
from worldsize.draw._cost import cost, crossovers
from worldsize.draw._curves import curves
from worldsize.draw._ledger import ledger
from worldsize.draw._memory import memory
from worldsize.draw._memory_over_time import live_bytes, memory_over_time
from worldsize.draw._memory_use import memory_use
from worldsize.draw._mesh import mesh
from worldsize.draw._messages import messages
from worldsize.draw._node import node
from worldsize.draw._scaling import scaling
from worldsize.draw._scatter import scatter
from worldsize.draw._shares import shares
from worldsize.draw._table import Table, table
from worldsize.draw._timeline import timeline, timelines
from worldsize.draw.picture import Picture

__all__ = [
    "Picture",
    "Table",
    "bytes_by_axis",
    "chunks",
    "circle",
    "cost",
    "crossovers",
    "curves",
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
