"""Alignment of two records of one program, the deeper of which has more identical layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any

from worldsize.paper.record import OperatorLocation, RankRecord


def levels_side_by_side(shallow: RankRecord, deep: RankRecord) -> set[tuple[int, int]]:
    """Return the pairs of bytes that both records hold at corresponding places of the program.

    Places correspond if as many layers precede them, or as many follow: of identical layers, it is not known which
    the shallow program lacks. In the full program, every other place lies between two of these.
    """
    places, deep_places = _places(shallow), _places(deep)
    # a result may grow with the number of layers
    matched = _matched(places, deep_places, [one[:-1] for one in places], [one[:-1] for one in deep_places])
    front = _slid(matched, places, deep_places, range(len(places)), step=1)
    back = _slid(matched, places, deep_places, reversed(range(len(places))), step=-1)
    pairs = {*front.items(), *back.items()}
    return {(shallow.levels[one].size_bytes, deep.levels[other].size_bytes) for one, other in pairs}


def _places(record: RankRecord) -> list[OperatorLocation]:
    return [record.places[level.place] for level in record.levels]


def _matched(
    shallow: Sequence[Any], deep: Sequence[Any], loose_shallow: Sequence[Any], loose_deep: Sequence[Any]
) -> dict[int, int]:
    """Match elements of the shallow sequence to elements of the deep one, in the same order."""
    found: dict[int, int] = {}
    for tag, start, stop, start_deep, stop_deep in SequenceMatcher(None, shallow, deep, autojunk=False).get_opcodes():
        if tag == "equal":
            found |= zip(range(start, stop), range(start_deep, stop_deep), strict=True)
        elif tag == "replace":
            left, right = loose_shallow[start:stop], loose_deep[start_deep:stop_deep]
            for one, other, length in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
                found |= {start + one + place: start_deep + other + place for place in range(length)}
    return found


def _slid(
    matched: dict[int, int], shallow: Sequence[Any], deep: Sequence[Any], order: Iterable[int], step: int
) -> dict[int, int]:
    """Return the match with its gaps moved as far along `order` as equal elements permit."""
    found: dict[int, int] = {}
    for one in order:
        if one in matched:
            nearest = found[one - step] + step if one - step in found else matched[one]
            found[one] = nearest if deep[nearest] == shallow[one] else matched[one]
    return found
