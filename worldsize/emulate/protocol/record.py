"""The record of an emulated run: what each rank did, in its own order, and the operations that took place.

The kinds of its steps are those below and `worldsize.hardware.TRANSFERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

FLOPS, MEASURED = "flops", "measured"
KINDS = (FLOPS, MEASURED, "none")  # ways to price a rank's own work
COMPUTE, POST, WAIT, MARK, JOIN, TIMEOUT = "compute", "post", "wait", "mark", "join", "timeout"
MAIN = ""  # the lane of a rank's main thread and default stream


class Step(NamedTuple):
    """One step of a rank: it worked for `duration_s`, posted its `number`-th post, or waited for that post.

    At a timeout it waited for that post for `duration_s`, in vain. In a transfer, `number` bytes go between its GPU,
    its host and storage, and its lane waits for them.

    `name` and `work` are the name and kind of the work, from the innermost `worldsize.span`. Steps on one `lane` follow
    each other, those on different lanes do not wait for each other: a lane sets its `number`-th mark, and another that
    joins this mark goes on no earlier. A mark comes before those that join it.
    """

    kind: str
    number: int = 0
    duration_s: float = 0.0
    name: str = ""
    work: str = COMPUTE
    lane: str = MAIN


class Operation(NamedTuple):
    """One message (`ranks` are sender and receiver) or one collective of a group, with the posts that make it up.

    An operation that a lost rank takes part in never happens: each other rank's part is an operation of its own, which
    has failed when that rank has heard of the loss at `failed_s`, and at once where it was posted later.
    """

    op: str
    ranks: tuple[int, ...]
    size_bytes: int
    group: str = ""
    sequence: int = 0
    parts: Mapping[int, int] = MappingProxyType({})  # rank -> number of its post
    root: int | None = None
    failed_s: float | None = None
