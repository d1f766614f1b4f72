"""Comparing the works of a class by how much of their own code they share.

Code that is also in the released notebook or the solution has weight 0, and code that many students have has little
weight, because independent answers to the same questions share it. The similarity of two works is the weight of their
shared code divided by the geometric mean of their own weights: 1 for a copy, however it was renamed and reordered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from autograder.similarity.fingerprints import Span, fingerprints
from autograder.similarity.tokens import imported_names, own_attributes, tokens

LINE = 0.94  # pairs at or above it are shown; `python tests/bench similarity` measures how many are on each side
FEWEST = 40  # works with fewer fingerprints of their own are not compared


@dataclass(frozen=True)
class ComparedWork:
    """One work: whose, from which folder, its cells or programs by name; `is_past` for earlier years."""

    name: str
    parts: Mapping[str, str]
    is_past: bool = False


@dataclass(frozen=True)
class Pair:
    """Two works, and for each the lines that the other also has, counted from 1, by the name of the part."""

    one: ComparedWork
    other: ComparedWork
    similarity: float
    lines: tuple[Mapping[str, set[int]], Mapping[str, set[int]]]


@dataclass(frozen=True)
class Comparison:
    """The pairs above the line, the most similar first; `similarities` are those of all pairs that share anything."""

    pairs: Sequence[Pair]
    similarities: Mapping[tuple[str, str], float]
    too_small: Sequence[str]


@dataclass
class _Prints:
    """The fingerprints that are a work's own, with the lines of each part."""

    work: ComparedWork
    spans: dict[int, list[tuple[str, Span]]] = field(default_factory=lambda: defaultdict(list))


def compare(works: Sequence[ComparedWork], known: Sequence[str], line: float = LINE) -> Comparison:
    """The pairs of works of which one is this year's; `known` are the sources of the release and of the solution."""
    imported = set().union(*(imported_names(source) for source in known))
    common = {one for source in known for one in fingerprints(tokens(source, imported))}
    prints = [_prints(work, imported, common) for work in works]
    enough = [one for one in prints if len(one.spans) >= FEWEST]
    too_small = [one.work.name for one in prints if len(one.spans) < FEWEST and not one.work.is_past]
    holders = _holders(enough)
    weights = {key: math.log((1 + len(enough)) / len(places)) for key, places in holders.items()}
    shared: dict[tuple[int, int], float] = defaultdict(float)
    for key, places in holders.items():
        for pair in combinations(places, 2):
            shared[pair] += weights[key]
    whole = [sum(weights[key] for key in one.spans) for one in enough]
    similar = {
        (one, other): weight / math.sqrt(whole[one] * whole[other])
        for (one, other), weight in shared.items()
        if not (enough[one].work.is_past and enough[other].work.is_past)
    }
    found = [_pair(enough[one], enough[other], value) for (one, other), value in similar.items() if value >= line]
    names = {(enough[one].work.name, enough[other].work.name): value for (one, other), value in similar.items()}
    in_order = sorted(found, key=lambda pair: (-pair.similarity, pair.one.name, pair.other.name))
    return Comparison(in_order, names, too_small)


def _prints(work: ComparedWork, imported: set[str], common: set[int]) -> _Prints:
    made = _Prints(work)
    own = set().union(*(own_attributes(source) for source in work.parts.values()))
    for name, source in work.parts.items():
        for key, spans in fingerprints(tokens(source, imported, own)).items():
            if key not in common:
                made.spans[key] += [(name, span) for span in spans]
    return made


def _holders(prints: Sequence[_Prints]) -> dict[int, list[int]]:
    """For each fingerprint, the indices of the works that have it."""
    holders: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(prints):
        for key in one.spans:
            holders[key].append(place)
    return holders


def _pair(one: _Prints, other: _Prints, similarity: float) -> Pair:
    shared = one.spans.keys() & other.spans.keys()
    return Pair(one.work, other.work, similarity, (_lines(one, shared), _lines(other, shared)))


def _lines(prints: _Prints, shared: set[int]) -> dict[str, set[int]]:
    lines: dict[str, set[int]] = defaultdict(set)
    for key in shared:
        for part, span in prints.spans[key]:
            lines[part] |= set(range(span.first, span.last + 1))
    return lines
