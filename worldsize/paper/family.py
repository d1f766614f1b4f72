"""The family of layouts that recorded ranks belong to, as far as published programs can be compared with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from worldsize.emulate.protocol.record import COMPUTE, POST
from worldsize.event import axis_of
from worldsize.paper.record import BACKWARD, FORWARD, OTHER, RECOMPUTE, RankRecord, RecordedPost
from worldsize.published import DATA, TENSOR_OR_PIPELINE
from worldsize.units import KIB

_MESSAGES = ("send", "recv")
_SUMS = ("all_reduce", "reduce_scatter", "reduce")
_SMALL_BYTES = 4 * KIB  # losses and other statistics, which any program may sum


def family_of(records: Sequence[RankRecord]) -> str:
    """Return the family of layouts; empty if no published program is of it, or nothing is trained.

    Only tensor parallelism sums tensors in the forward pass, and only pipelines send messages in it. A mixture of
    experts and context parallelism show by an all-to-all or by the names of their groups; a ring of messages in a group
    without a name is taken for a pipeline.
    """
    if not any(work.phase == BACKWARD for record in records for work in record.works):
        return ""
    if any(map(_is_not_published, records)):
        return ""
    is_split = any(map(_is_in_parts, (post for record in records for post in _posts_in_forward(record))))
    return TENSOR_OR_PIPELINE if is_split else DATA


def _is_not_published(record: RankRecord) -> bool:
    axes = {axis_of(record.groups[post.group].name) for post in record.posts}
    return bool(axes & {"cp", "ep"}) or any(post.op.startswith("all_to_all") for post in record.posts)


def _is_in_parts(post: RecordedPost) -> bool:
    return post.op in _MESSAGES or (post.op in _SUMS and post.size_bytes > _SMALL_BYTES)


def _posts_in_forward(record: RankRecord) -> Iterator[RecordedPost]:
    """Yield the posts of the forward pass and of its recomputation."""
    phase = ""
    for step in record.steps:
        if step.kind == COMPUTE and step.number:
            phase = _training_phase(record, record.batches[step.number - 1]) or phase
        elif step.kind == POST and phase in (FORWARD, RECOMPUTE):
            yield record.posts[step.number - 1]


def _training_phase(record: RankRecord, batch: Iterable[int]) -> str:
    """Return the phase of training of a batch of work; empty if it is of none."""
    return next((phase for index in batch if (phase := record.works[index].phase) != OTHER), "")
