"""Events and spans of a rank, as sent over its socket."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from worldsize.event import Event
from worldsize.message import Amount, Count, Finite, Word


class SentEvent(Struct, frozen=True, array_like=True):
    """An event as a rank sends it, in seconds of the monotonic clock."""

    stream: Word
    kind: Word
    name: Word
    start_s: Finite
    end_s: Finite
    size_bytes: Count = 0
    peers: tuple[int, ...] = ()
    group: Word = ""
    sequence: int = 0
    sent_bytes: Amount = 0


def read_events(rank: int, sent: Iterable[SentEvent], origin_s: float) -> list[Event]:
    """Convert a rank's events to seconds since `origin_s` on the monotonic clock.

    Raises:
        ValueError: an event ends before it starts.
    """
    return [_event(rank, event, origin_s) for event in sent]


def _event(rank: int, sent: SentEvent, origin_s: float) -> Event:
    if sent.start_s > sent.end_s:
        raise ValueError(f"an event starts at {sent.start_s} s, after its end at {sent.end_s} s")
    return Event(
        rank=rank,
        stream=sent.stream,
        kind=sent.kind,
        name=sent.name,
        start_s=sent.start_s - origin_s,
        end_s=sent.end_s - origin_s,
        size_bytes=sent.size_bytes,
        sent_bytes=sent.sent_bytes,
        peers=sent.peers,
        group=sent.group,
        sequence=sent.sequence,
    )
