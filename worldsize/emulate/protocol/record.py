"""The record of an emulated run: each rank's steps in order, and the operations that took place.

The kinds of steps are those below and `worldsize.hardware.TRANSFERS`.
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
    """One step of a rank: it worked for `duration_s`, made its `number`-th post, or waited for that post.

    A timeout is a wait for that post that failed after `duration_s`. A transfer moves `number` bytes between the GPU,
    its host and storage, and its lane waits for them.

    `name` and `work` are the name and kind of the work, from the innermost `worldsize.span`. Steps on one `lane` run in
    order; those on different lanes run concurrently, except that a lane which joins the rank's `number`-th mark goes on
    no earlier than the lane that set it. A mark precedes its joins in the record.
    """

    kind: str
    number: int = 0
    duration_s: float = 0.0
    name: str = ""
    work: str = COMPUTE
    lane: str = MAIN


class Operation(NamedTuple):
    """One message (`ranks` are sender and receiver) or one collective of a group, with the posts that it consists of.

    With a lost rank, each other rank's part is a separate operation, which fails when that rank hears of the loss at
    `failed_s`, or immediately if it is posted later.
    """

    op: str
    ranks: tuple[int, ...]
    size_bytes: int
    group: str = ""
    sequence: int = 0
    parts: Mapping[int, int] = MappingProxyType({})  # rank -> number of its post
    root: int | None = None
    failed_s: float | None = None
