"""Alignment of two records of one program, the deeper of which has more identical layers."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import Match, SequenceMatcher
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from worldsize.paper.record import OperatorLocation, RankRecord

Sizes: TypeAlias = tuple[int, ...]  # bytes in the order of `memory.use.KINDS`


class Alignment(NamedTuple):
    """The pairs of bytes by kind that two records hold at corresponding places of the program.

    `single` has the places of one record alone, paired with what the other would hold if it did the same next to the
    nearest corresponding place.
    """

    pairs: set[tuple[Sizes, Sizes]]
    single: set[tuple[Sizes, Sizes]]


def align(shallow: RankRecord, deep: RankRecord) -> Alignment:
    """Pair the places of two records where as many layers precede, or as many follow.

    Of identical layers, it is not known which the shallow program lacks. If no place is of one record alone, the deep
    program only repeats what the shallow one does, and in the full program every place lies between two of these.
    """
    places, deep_places = _places(shallow), _places(deep)
    # a result may grow with the number of layers, and with it what its operator changes
    loose, deep_loose = ([one[:-1] for one, _ in found] for found in (places, deep_places))
    matched = _matched(places, deep_places, loose, deep_loose)
    front = _slid(matched, places, deep_places, range(len(places)), step=1)
    back = _slid(matched, places, deep_places, reversed(range(len(places))), step=-1)
    links = {*front.items(), *back.items()}
    sizes, deep_sizes = ([level.sizes for level in record.levels] for record in (shallow, deep))
    of_shallow = _single(sizes, deep_sizes, links)
    of_deep = _single(deep_sizes, sizes, {(other, one) for one, other in links})
    return Alignment(
        {(sizes[one], deep_sizes[other]) for one, other in links},
        of_shallow | {(other, one) for one, other in of_deep},
    )


def _places(record: RankRecord) -> list[tuple[OperatorLocation, int]]:
    """Return the place of each level, and by how much the bytes held change there.

    The change distinguishes a layer that runs beside the gathered weights of another from one that runs alone.
    """
    sizes = [level.size_bytes for level in record.levels]
    changes = (size - before for before, size in pairwise([0, *sizes]))
    return [(record.places[level.place], change) for level, change in zip(record.levels, changes, strict=True)]


def _single(
    sizes: Sequence[Sizes], others: Sequence[Sizes], links: Iterable[tuple[int, int]]
) -> set[tuple[Sizes, Sizes]]:
    """Pair each size without a link with what the other record would hold there, beside the nearest linked places."""
    linked: dict[int, list[int]] = {}
    for one, other in links:
        linked.setdefault(one, []).append(other)
    order = sorted(linked)
    found: set[tuple[Sizes, Sizes]] = set()
    for one in sorted({*range(len(sizes))} - linked.keys()):
        after = bisect(order, one)
        for near in order[max(after - 1, 0) : after + 1]:
            found |= {(sizes[one], _moved(others[other], sizes[near], sizes[one])) for other in linked[near]}
    return found


def _moved(sizes: Sizes, before: Sizes, after: Sizes) -> Sizes:
    """Change sizes as from `before` to `after`."""
    return tuple(size + new - old for size, old, new in zip(sizes, before, after, strict=True))


def _matched(
    shallow: Sequence[Any], deep: Sequence[Any], loose_shallow: Sequence[Any], loose_deep: Sequence[Any]
) -> dict[int, int]:
    """Match elements of the shallow sequence to elements of the deep one, in the same order.

    What both have equally often is in no layer: it is matched first, so that a loop over the layers meets the same loop
    of the other sequence, and not that of another micro-batch.
    """
    counts, deep_counts = Counter(shallow), Counter(deep)
    outside = {one for one, number in counts.items() if deep_counts[one] == number}
    places, deep_places = ([place for place, one in enumerate(found) if one in outside] for found in (shallow, deep))
    found: dict[int, int] = {}
    for block in _blocks([shallow[place] for place in places], [deep[place] for place in deep_places]):
        found |= zip(places[block.a :][: block.size], deep_places[block.b :][: block.size], strict=True)
    bounds = [(-1, -1), *found.items(), (len(shallow), len(deep))]
    for (before, deep_before), (stop, deep_stop) in pairwise(bounds):
        start, deep_start = before + 1, deep_before + 1
        inside = (
            shallow[start:stop],
            deep[deep_start:deep_stop],
            loose_shallow[start:stop],
            loose_deep[deep_start:deep_stop],
        )
        found |= {start + one: deep_start + other for one, other in _matched_inside(*inside).items()}
    return found


def _matched_inside(
    shallow: Sequence[Any], deep: Sequence[Any], loose_shallow: Sequence[Any], loose_deep: Sequence[Any]
) -> dict[int, int]:
    """Match elements in the same order; between those that are equal, match what is loosely equal."""
    found: dict[int, int] = {}
    for tag, start, stop, start_deep, stop_deep in SequenceMatcher(None, shallow, deep, autojunk=False).get_opcodes():
        if tag == "equal":
            found |= zip(range(start, stop), range(start_deep, stop_deep), strict=True)
        elif tag == "replace":
            for block in _blocks(loose_shallow[start:stop], loose_deep[start_deep:stop_deep]):
                found |= {start + block.a + place: start_deep + block.b + place for place in range(block.size)}
    return found


def _blocks(shallow: Sequence[Any], deep: Sequence[Any]) -> list[Match]:
    return SequenceMatcher(None, shallow, deep, autojunk=False).get_matching_blocks()


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
